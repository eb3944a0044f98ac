"""How long a training waits between the last batch of an epoch and the first of the next."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from time import perf_counter

from benchmarks.consumer import Device
from benchmarks.contestants import OURS, TORCH
from benchmarks.datasets import Rows, Text
from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.spread import spread
from benchmarks.workloads import Workload

_NB_BATCH = 40
_BAR = 2.0
WORKLOADS = {
    "tabular": Workload("tabular", Rows, 256, {"nb_samples": 256 * _NB_BATCH}),
    "python": Workload("python", Text, 8, {"nb_samples": 8 * _NB_BATCH}),
}
_MODULES = {OURS: "benchmarks.ours", TORCH: "benchmarks.peers.torch_dataloader"}


def gaps(contestant: str, workload: Workload, nb_epoch: int) -> dict[str, float]:
    """Mean seconds from one batch to the next: within an epoch, and across its end."""
    import torch

    torch.set_num_threads(1)
    with import_module(_MODULES[contestant]).batches(workload, 2) as batches:
        device = Device(next(batches))
        for _ in range(2 * _NB_BATCH - 1):
            device.take(next(batches))
        times_s = []
        for _ in range(nb_epoch * _NB_BATCH + 1):
            device.take(next(batches))
            times_s.append(perf_counter())
    steps_s = [after - before for before, after in pairwise(times_s)]
    at_boundary_s = steps_s[_NB_BATCH - 1 :: _NB_BATCH]
    within_s = [step for i, step in enumerate(steps_s) if (i + 1) % _NB_BATCH]
    return {
        "boundary_s": fmean(at_boundary_s),
        "within_s": fmean(within_s),
        "boundaries_over_within": fmean(at_boundary_s) / fmean(within_s),
    }


def run(is_quick: bool, out: Path) -> list[Figure]:
    """The gap at the boundary over an ordinary one, ours and torch's (persistent workers)."""
    figures = []
    for name, workload in WORKLOADS.items():
        rounds = measure_in_turn(
            f"epoch-gap, {name}",
            {
                who: partial(
                    gaps, contestant=who, workload=workload, nb_epoch=4 if is_quick else 12
                )
                for who in _MODULES
            },
            is_quick,
        )
        for who in _MODULES:
            column = rounds.column(who, "boundaries_over_within")
            if column:
                boundary = spread(rounds.column(who, "boundary_s")).median
                within = spread(rounds.column(who, "within_s")).median
                figures.append(
                    Figure(
                        "epoch-gap",
                        f"{name}: {who}, gap at the boundary over an ordinary one",
                        spread(column),
                        bar=_BAR if who == OURS else None,
                        ours=f"{boundary * 1e3:.2f} ms at the boundary",
                        theirs=f"{within * 1e3:.2f} ms within",
                    )
                )
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "epoch-gap"])
