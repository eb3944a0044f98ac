"""Memory of a dataset that is handed over as 500 MB of numpy, with 4 workers.

What all processes hold together (PSS, shared pages counted once), less what they hold for a dataset
of next to nothing, in copies of the array. The script lets go of its array once the loader has it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import fresh
from benchmarks.datasets import BigTable
from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.processes import total_pss_bytes
from benchmarks.spread import spread

_NB_WORKER = 4
_ROW_BYTES = 4096
_TABLE_BYTES = 500_000_000
_BATCH_SIZE = 256
_BAR = 1.3


def _table(nb_bytes: int) -> NDArray[np.float32]:
    return np.ones((nb_bytes // _ROW_BYTES, _ROW_BYTES // 4), dtype=np.float32)


def _nb_epochs(nb_bytes: int) -> int:
    """As many batches for the small table as for the big one."""
    return max(1, _TABLE_BYTES // nb_bytes // 8)


def ours(nb_bytes: int) -> dict[str, float]:
    """Memory of all processes after every sample was read."""
    import torch

    from swift_loader import SwiftLoader

    with SwiftLoader(
        dataset_class=BigTable,
        dataset_kwargs={"table": _table(nb_bytes)},
        batch_size=_BATCH_SIZE,
        nb_consumer=1,
        worker_per_consumer=_NB_WORKER,
        shuffle=True,
    ) as loader:
        loader.start(consumer_index=0, device=torch.device("cpu"))
        for _ in range(_nb_epochs(nb_bytes)):
            for _ in loader:
                pass
        return {"pss_bytes": float(total_pss_bytes())}


def torchs(nb_bytes: int) -> dict[str, float]:
    """The same of torch's DataLoader with `spawn`."""
    from torch.utils.data import DataLoader

    table: Any = BigTable(_table(nb_bytes))
    loader: DataLoader[Any] = DataLoader(
        table,
        batch_size=_BATCH_SIZE,
        shuffle=True,
        num_workers=_NB_WORKER,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )
    for _ in range(_nb_epochs(nb_bytes)):
        for _ in loader:
            pass
    return {"pss_bytes": float(total_pss_bytes())}


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Copies of the array that all processes hold, ours (the bar) and torch's."""
    figures = []
    for who, probe, bar in [("swift_loader", ours, _BAR), ("torch spawn", torchs, None)]:
        rounds = measure_in_turn(
            f"shared-dataset, {who}",
            {
                "big": partial(probe, nb_bytes=_TABLE_BYTES),
                "small": partial(probe, nb_bytes=_TABLE_BYTES // 100),
            },
            is_quick,
            fresh.call_from_nothing,
            rounds=1 if is_quick or bar is None else 3,
        )
        if rounds.failures:
            continue
        big, small = (rounds.column(name, "pss_bytes") for name in ("big", "small"))
        figures.append(
            Figure(
                "shared-dataset",
                f"{who}: copies of 500 MB held, {_NB_WORKER} workers",
                spread([(a - b) / (0.99 * _TABLE_BYTES) for a, b in zip(big, small, strict=True)]),
                unit="copies",
                bar=bar,
                ours=f"{spread(big).median / 1e6:.0f} MB in all",
                theirs=f"{spread(small).median / 1e6:.0f} MB for 5 MB",
            )
        )
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "shared-dataset"])
