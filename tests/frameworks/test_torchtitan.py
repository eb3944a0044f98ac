"""The guide's loader for torchtitan, with torchtitan's checkpoints: 2 ranks save, 1 or 3 go on."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.docs.blocks import ROOT, blocks_of
from tests.ranks import run_ranks

pytest.importorskip("torchtitan", reason="needs torchtitan, whose requirements are many")
pytestmark = pytest.mark.timeout(200)

N, STEPS = 50, 4
TOKENS = f"""
import torch


class Tokens:
    def __init__(self, path, length):
        self.path, self.length = path, length

    def __len__(self):
        return {N}

    def __getitem__(self, i):
        return {{"input": torch.full((self.length,), i)}}, torch.full((self.length,), i + 1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    blocks = blocks_of(ROOT / "docs" / "guides" / "resume.md")
    (recipe,) = (block.code for block in blocks if block.title == "titan_loader.py")
    (tmp_path / "titan_loader.py").write_text(recipe)
    (tmp_path / "titan_tokens.py").write_text(TOKENS)
    return tmp_path


class Nothing:
    """In the place of an optimizer or a schedule."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state


def train(rank: int, nb_ranks: int, folder: str, nb_steps: int) -> list[int]:
    """As torchtitan's trainer does it: build, load, iterate, save."""
    sys.path.insert(0, folder)
    from titan_loader import Loader  # type: ignore[import-not-found]
    from torchtitan.components.checkpoint import CheckpointManager

    loader = Loader.Config(dataset_path="tokens.bin").build(
        dp_world_size=nb_ranks, dp_rank=rank, tokenizer=None, seq_len=8, local_batch_size=3,
        snapshot_every_n_steps=None,
    )  # fmt: skip
    checkpoints = CheckpointManager.Config(enable=True, folder="kept", interval=STEPS).build(
        dataloader=loader, model_parts=[torch.nn.Linear(2, 2)], optimizers=Nothing(),
        lr_schedulers=Nothing(), states={"train_state": Nothing()}, sd_adapter=None,
        base_folder=folder,
    )  # fmt: skip
    loaded = checkpoints.load()
    assert loaded == (nb_steps != STEPS)
    seen = []
    for inputs, labels in islice(loader, nb_steps):
        assert torch.equal(inputs["input"] + 1, labels)
        assert inputs["input"].shape[1] == 8
        seen += inputs["input"][:, 0].tolist()
    if not loaded:
        checkpoints.save(STEPS)
    checkpoints.close()
    loader.loader.close()
    return seen


@pytest.mark.parametrize("later", [1, 3])
def test_its_checkpoints_go_on_with_another_number_of_ranks(folder: Path, later: int) -> None:
    first = run_ranks(2, train, 2, str(folder), STEPS)
    assert all(isinstance(seen, list) for seen in first), first
    rest = -(-(N - 2 * STEPS * 3) // (3 * later))
    second = run_ranks(later, train, later, str(folder), rest)
    seen = Counter(i for rank in first + second for i in rank)
    assert seen == Counter(range(N))
