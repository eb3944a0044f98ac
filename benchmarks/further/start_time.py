"""How long a training waits for its first batch: from building the loader to the first ``next()``.

With 1, 4 and 16 workers, beside torch's `spawn`, and its `fork`, which is unsafe once CUDA is in
use. Ours: as it is (``start_method="auto"``), forked, and as the second loader of its process,
while the first one is open and after it was closed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks.datasets import Rows
from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.spread import ratios, spread
from benchmarks.workloads import Workload

_TABULAR = Workload("tabular", Rows, 256)
_OURS = {"swift_loader": "auto", "swift_loader, forked": "fork"}
_SECOND = "swift_loader, a second loader"
_NEXT = "swift_loader, the next loader"
_SPAWN, _FORK = "torch spawn", "torch fork"
_BARS = {("swift_loader", 4): 1 / 3, ("swift_loader, forked", 4): 0.1}  # over torch's spawn


def ours(start_method: str, nb_worker: int, *, after: str = "") -> dict[str, float]:
    """Seconds to the first batch, and those of them after ``start()`` was called.

    `after`: a first loader that is still "open", or is "closed".
    """
    import torch

    from benchmarks.ours import loader

    if after:
        with loader(_TABULAR, nb_worker, start_method=start_method) as first:
            first.start(consumer_index=0, device=torch.device("cpu"))
            next(iter(first))
            if after == "open":
                return ours(start_method, nb_worker)
        return ours(start_method, nb_worker)
    build_s = perf_counter()
    with loader(_TABULAR, nb_worker, start_method=start_method) as ready:
        start_s = perf_counter()
        ready.start(consumer_index=0, device=torch.device("cpu"))
        next(iter(ready))
        end_s = perf_counter()
        return {"first_batch_s": end_s - build_s, "after_start_s": end_s - start_s}


def torchs(start_method: str, nb_worker: int) -> dict[str, float]:
    """Seconds to the first batch of torch's DataLoader."""
    from benchmarks.peers.torch_dataloader import loader

    build_s = perf_counter()
    next(iter(loader(_TABULAR, nb_worker, multiprocessing_context=start_method)))
    return {"first_batch_s": perf_counter() - build_s}


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Ours over torch's `spawn` (the bars), and over its `fork` where ours forks as well."""
    figures = []
    for nb_worker in (4,) if is_quick else (1, 4, 16):
        probes = {
            who: partial(ours, start_method=method, nb_worker=nb_worker)
            for who, method in _OURS.items()
        }
        for who, after in ((_SECOND, "open"), (_NEXT, "closed")):
            probes[who] = partial(ours, start_method="auto", nb_worker=nb_worker, after=after)
        probes[_SPAWN] = partial(torchs, start_method="spawn", nb_worker=nb_worker)
        probes[_FORK] = partial(torchs, start_method="fork", nb_worker=nb_worker)
        rounds = measure_in_turn(f"start-time, {nb_worker} workers", probes, is_quick)
        pairs = [(who, _SPAWN) for who in (*_OURS, _SECOND, _NEXT)]
        pairs += [(who, _FORK) for who in ("swift_loader, forked", _NEXT)]
        for who, other in pairs:
            mine, theirs = (rounds.column(one, "first_batch_s") for one in (who, other))
            after_s = rounds.column(who, "after_start_s")
            if mine and theirs:
                figures.append(
                    Figure(
                        "start-time",
                        f"first batch with {nb_worker} workers: {who}, over {other}",
                        ratios(mine, theirs),
                        bar=_BARS.get((who, nb_worker)) if other == _SPAWN else None,
                        ours=f"{spread(mine).median:.2f} s, "
                        f"{spread(after_s).median:.2f} s of it from start() on",
                        theirs=f"{spread(theirs).median:.2f} s",
                    )
                )
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "start-time"])
