"""Data sets that are arrays: batches gathered into their slots, beside samples made one by one.

Each workload runs four times in turn: gathered (`ArrayDataset`), by samples of a class with rows of
the same kind, by bare slots and by torch's DataLoader; the last three use the class.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.contestants import BARE, OURS, TORCH
from benchmarks.datasets import NB_SAMPLES, Rows, Tokens
from benchmarks.figures import Figure, over
from benchmarks.further.pairs import measure_in_turn
from benchmarks.workloads import Workload

NB_WORKER = 2
_GATHERED, _SAMPLES = "gathered", "samples"
_OVER_BARE = {"tokens": 2.0, "tabular": 1.0, "tiny": 0.75}


def token_windows(as_torch: bool = True, context_length: int = 2048) -> Any:
    """The samples of `Tokens` as windows of one array, each one token after the last."""
    from swift_loader import ArrayDataset, Windows

    tokens = np.random.default_rng(0).integers(0, 50_000, size=NB_SAMPLES, dtype=np.int64)
    return ArrayDataset(
        x=Windows(tokens[:-1], context_length, step=1),
        y=Windows(tokens[1:], context_length, step=1),
    )


def table(as_torch: bool = True, nb_rows: int = 1 << 16) -> Any:
    """The samples of `Rows` as arrays: more of them than fit in a cache of the second level."""
    from swift_loader import ArrayDataset

    rows = np.random.default_rng(0).random((nb_rows, 16), dtype=np.float32)
    return ArrayDataset(rows, np.arange(nb_rows))


WORKLOADS = {
    "tokens": (Workload("tokens", Tokens, 32), Workload("tokens", token_windows, 32)),
    "tabular": (Workload("tabular", Rows, 256), Workload("tabular", table, 256)),
    "tiny": (Workload("tiny", Rows, 8), Workload("tiny", table, 8)),
}


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Batches a second of the gathered form over each of the others."""
    figures = []
    for name, (by_samples, as_arrays) in WORKLOADS.items():
        probes = {
            _GATHERED: partial(_rate, contestant=OURS, workload=as_arrays),
            _SAMPLES: partial(_rate, contestant=OURS, workload=by_samples),
            BARE: partial(_rate, contestant=BARE, workload=by_samples),
            TORCH: partial(_rate, contestant=TORCH, workload=by_samples),
        }
        rounds = measure_in_turn(f"gather, {name}", probes, is_quick)
        mine = rounds.column(_GATHERED, "batches_per_s")
        for other in (_SAMPLES, BARE, TORCH):
            theirs = rounds.column(other, "batches_per_s")
            if mine and theirs:
                figures.append(
                    over(
                        "gather",
                        f"{name} gathered, batches/s over {other}",
                        mine,
                        theirs,
                        _OVER_BARE[name] if other == BARE else None,
                    )
                )
    return figures


def _rate(contestant: str, workload: Workload) -> dict[str, Any]:
    answer: dict[str, Any] = measure.run(contestant, workload, NB_WORKER)
    return answer


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "gather"])
