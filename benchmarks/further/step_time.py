"""What a loader costs a training step that computes: the same matmuls with and without it.

The step works on the training thread and holds and frees the GIL as a real one does; a loader whose
threads want the GIL, or that frees big memory under it, shows here and not in a rate.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.consumer import Device
from benchmarks.contestants import OURS, TORCH
from benchmarks.datasets import Images, ManyTensors
from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.spread import ratios, spread
from benchmarks.workloads import Workload

_ALONE = "no loader"
_SIDE = 256
_NB_MATMUL = 30
_NB_WORKER = 1  # a core for the training process, a core for the worker
_MODULES = {OURS: "benchmarks.ours", TORCH: "benchmarks.peers.torch_dataloader"}
WORKLOADS = {
    "image-u8": Workload("image-u8", Images, 64, {"dtype": "uint8"}),
    "many": Workload("many", ManyTensors, 16),
}


class Step:
    """A training step: copy the batch, then a fixed number of small matmuls."""

    def __init__(self, batch: Any) -> None:
        import torch

        torch.set_num_threads(1)
        self._device = Device(batch)
        self._weights = torch.rand(_SIDE, _SIDE) / _SIDE
        self._out = torch.empty(_SIDE, _SIDE)
        self._matmul = torch.mm

    def __call__(self, batch: Any) -> None:
        self._device.take(batch)
        for _ in range(_NB_MATMUL):
            self._matmul(self._weights, self._weights, out=self._out)


def step_s(contestant: str, workload: Workload, nb_step: int) -> dict[str, float]:
    """Median and 99th percentile of the seconds from one batch to the next."""
    if contestant == _ALONE:
        from torch.utils.data import default_collate

        dataset = workload.dataset()
        batch = default_collate([dataset[index] for index in range(workload.batch_size)])
        return _times([batch] * (nb_step + 20))
    with import_module(_MODULES[contestant]).batches(workload, _NB_WORKER) as batches:
        return _times(next(batches) for _ in range(nb_step + 20))


def _times(batches: Any) -> dict[str, float]:
    step = None
    times_s = []
    for batch in batches:
        step = step or Step(batch)
        step(batch)
        del batch
        times_s.append(perf_counter())
    steps_s = np.diff(np.asarray(times_s))[10:]
    return {
        "median_s": float(np.median(steps_s)),
        "p99_s": float(np.percentile(steps_s, 99)),
        "mean_s": float(np.mean(steps_s)),
    }


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Time of a step with a loader over the time of the same step on one batch kept."""
    figures = []
    for name, workload in WORKLOADS.items():
        rounds = measure_in_turn(
            f"step-time, {name}",
            {
                who: partial(
                    step_s, contestant=who, workload=workload, nb_step=50 if is_quick else 200
                )
                for who in [_ALONE, *_MODULES]
            },
            is_quick,
        )
        alone = rounds.column(_ALONE, "mean_s")
        for who in _MODULES:
            mine = rounds.column(who, "mean_s")
            if mine and alone:
                figures.append(
                    Figure(
                        "step-time",
                        f"{name}: step with {who} over the step alone",
                        ratios(mine, alone),
                        ours=f"{spread(mine).median * 1e3:.2f} ms",
                        theirs=f"{spread(alone).median * 1e3:.2f} ms alone",
                    )
                )
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "step-time"])
