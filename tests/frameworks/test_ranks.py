"""torchrun with DDP, and Hugging Face accelerate: each of two ranks is a consumer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.ddp_run import NB_SAMPLES

ROOT = Path(__file__).parents[2]
LIMIT_S = 100


def on_two_ranks(folder: Path, kind: str) -> list[dict[str, Any]]:
    """What each rank wrote."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run(
        [*torchrun, "-m", "tests.frameworks.ddp_run", str(folder), kind],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=LIMIT_S,
    )
    return [json.loads((folder / f"{kind}{rank}.json").read_text()) for rank in range(2)]


def test_ddp_takes_equal_steps_over_an_uneven_data_set(tmp_path: Path) -> None:
    ranks = on_two_ranks(tmp_path, "torch")
    for one, other in zip(ranks[0]["seen"], ranks[1]["seen"], strict=True):
        assert sorted(one + other) == list(range(NB_SAMPLES))
        assert abs(len(one) - len(other)) == 1
    first, second = ranks[0]["seen"]
    assert first != second


def test_accelerate_leaves_the_loader_as_it_is_and_saves_it(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs Hugging Face accelerate")
    ranks = on_two_ranks(tmp_path, "accelerate")
    both = ranks[0]["seen"] + ranks[1]["seen"]
    assert sorted(both) == list(range(NB_SAMPLES))
    for rank in ranks:
        assert rank["untouched"]
        assert all(rank["skipped"])
        assert sorted(rank["gathered"]) == list(range(NB_SAMPLES))
        assert rank["again"] == rank["seen"][3 * 8 :]
