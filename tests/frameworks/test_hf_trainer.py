"""The Trainer of Hugging Face: a loader in `get_train_dataloader`, and its checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from swift_loader import SwiftLoader
from tests.datasets import Numbers

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore"),  # its own
]
NB_SAMPLES, BATCH, NB_BATCHES = 42, 4, 11


class Rows(Numbers):
    """Samples by name, as the Trainer passes them to the model."""

    def __getitem__(self, i: int) -> Any:
        row, index = super().__getitem__(i)
        return {"rows": row, "index": index}


class Model(nn.Module):
    """Writes down which samples come."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.seen: list[list[int]] = []

    def forward(self, rows: Any, index: Any) -> Any:
        self.seen.append(index.tolist())
        return {"loss": self.layer(rows / 100).square().mean()}


def train(folder: Path, resume: Path | None = None, **arguments: Any) -> list[list[int]]:
    transformers = pytest.importorskip("transformers", reason="needs Hugging Face transformers")

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return loader

    options = transformers.TrainingArguments(
        str(folder), num_train_epochs=3, save_steps=5, logging_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=True, per_device_train_batch_size=BATCH,
        remove_unused_columns=False, **arguments,
    )  # fmt: skip
    model = Model()
    with SwiftLoader(
        Rows, {"n": NB_SAMPLES}, BATCH, shuffle=True, seed=3, num_workers=2, validate=False
    ) as loader:
        Trainer(model, options).train(resume_from_checkpoint=resume and str(resume))
    return model.seen


def test_each_sample_comes_once_an_epoch_and_a_checkpoint_goes_on_where_it_was(
    tmp_path: Path,
) -> None:
    whole = train(tmp_path)
    assert len(whole) == 3 * NB_BATCHES
    for epoch in range(3):
        batches = whole[epoch * NB_BATCHES : (epoch + 1) * NB_BATCHES]
        assert sorted(i for batch in batches for i in batch) == list(range(NB_SAMPLES))
    assert whole[:NB_BATCHES] != whole[NB_BATCHES : 2 * NB_BATCHES]
    for step in (5, 15):  # in the middle of the first epoch, and of the second
        checkpoint = tmp_path / f"checkpoint-{step}"
        assert json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] == step
        assert train(tmp_path / "again", checkpoint) == whole[step:]


def test_plain_skipping_of_accelerate_gives_the_rest_of_an_epoch() -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs Hugging Face accelerate")
    with SwiftLoader(Numbers, {"n": NB_SAMPLES}, BATCH, shuffle=True, validate=False) as loader:
        loader.set_epoch(1)
        whole = [index.tolist() for _, index in loader]
        loader.set_epoch(1)
        rest = [index.tolist() for _, index in accelerate.skip_first_batches(loader, 4)]
    assert rest == whole[4:]
