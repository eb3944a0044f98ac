"""How long one batch takes from credit to ``next()``.

With one worker and one batch outstanding, taking a batch is what gives the credit for the next one,
so the time inside ``next()`` is the whole trip: tell the worker, fetch, collate, deliver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.contestants import OURS, TORCH
from benchmarks.datasets import Images, Rows
from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.spread import ratios, spread
from benchmarks.workloads import Workload

WORKLOADS = {
    "tiny": Workload("tiny", Rows, 8),
    "image-u8": Workload("image-u8", Images, 64, {"dtype": "uint8"}),
}
_NB_WARM = 50


def ours(workload: Workload, nb_batch: int) -> dict[str, float]:
    """Quantiles of the trip, in seconds."""
    from benchmarks.ours import batches

    with batches(workload, 1, data_queue_size=1, message_queue_size=1) as stream:
        return _quantiles(stream, nb_batch)


def torchs(workload: Workload, nb_batch: int) -> dict[str, float]:
    """The same of torch's DataLoader with ``prefetch_factor=1``."""
    from benchmarks.peers.torch_dataloader import loader

    return _quantiles(iter(loader(workload, 1, prefetch_factor=1)), nb_batch)


def _quantiles(stream: Iterator[Any], nb_batch: int) -> dict[str, float]:
    times_s = []
    for number in range(nb_batch + _NB_WARM):
        start_s = perf_counter()
        batch = next(stream)
        if number >= _NB_WARM:
            times_s.append(perf_counter() - start_s)
        del batch
    p50, p99 = np.percentile(np.asarray(times_s), [50, 99])
    return {"p50_s": float(p50), "p99_s": float(p99)}


def run(is_quick: bool, out: Path) -> list[Figure]:
    """p50 and p99, ours over torch's."""
    figures = []
    probes: dict[str, Callable[..., dict[str, float]]] = {OURS: ours, TORCH: torchs}
    for name, workload in WORKLOADS.items():
        rounds = measure_in_turn(
            f"latency, {name}",
            {
                who: partial(probe, workload=workload, nb_batch=200 if is_quick else 1000)
                for who, probe in probes.items()
            },
            is_quick,
        )
        for key in ("p50_s", "p99_s"):
            mine, theirs = rounds.column(OURS, key), rounds.column(TORCH, key)
            if mine and theirs:
                figures.append(
                    Figure(
                        "latency",
                        f"{name}: credit to next(), {key[:3]}, over {TORCH}",
                        ratios(mine, theirs),
                        ours=f"{spread(mine).median * 1e6:.0f} us",
                        theirs=f"{spread(theirs).median * 1e6:.0f} us",
                    )
                )
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "latency"])
