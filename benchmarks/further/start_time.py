"""How long a training waits for its first batch: ``start()`` to the first ``next()``, 4 workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks.datasets import Rows
from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.spread import ratios, spread
from benchmarks.workloads import Workload

NB_WORKER = 4
_TABULAR = Workload("tabular", Rows, 256)
_BAR = 1 / 3


def ours() -> dict[str, float]:
    """Seconds from construction, and from ``start()``, to the first batch."""
    import torch

    from benchmarks.ours import loader

    construct_s = perf_counter()
    with loader(_TABULAR, NB_WORKER) as ready:
        start_s = perf_counter()
        ready.start(consumer_index=0, device=torch.device("cpu"))
        next(iter(ready))
        end_s = perf_counter()
    return {"first_batch_s": end_s - start_s, "with_construction_s": end_s - construct_s}


def torchs(start_method: str) -> dict[str, float]:
    """Seconds from ``iter()`` to the first batch of torch's DataLoader."""
    from benchmarks.peers.torch_dataloader import loader

    construct_s = perf_counter()
    ready = loader(_TABULAR, NB_WORKER, multiprocessing_context=start_method)
    start_s = perf_counter()
    next(iter(ready))
    end_s = perf_counter()
    return {"first_batch_s": end_s - start_s, "with_construction_s": end_s - construct_s}


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Ours against torch's `spawn` (the bar) and `fork` (which is unsafe once CUDA is in use)."""
    rounds = measure_in_turn(
        "start-time",
        {
            "ours": partial(ours),
            "spawn": partial(torchs, start_method="spawn"),
            "fork": partial(torchs, start_method="fork"),
        },
        is_quick,
    )
    mine = rounds.column("ours", "first_batch_s")
    figures = []
    for method, bar in [("spawn", _BAR), ("fork", None)]:
        theirs = rounds.column(method, "first_batch_s")
        if mine and theirs:
            figures.append(
                Figure(
                    "start-time",
                    f"first batch with {NB_WORKER} workers, over torch {method}",
                    ratios(mine, theirs),
                    bar=bar,
                    ours=f"{spread(mine).median:.2f} s",
                    theirs=f"{spread(theirs).median:.2f} s",
                )
            )
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "start-time"])
