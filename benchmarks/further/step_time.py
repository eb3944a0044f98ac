"""What a loader costs a training step that computes: the same matmuls with and without it.

    python -m benchmarks --only step-time

Without a loader, the step takes batches in turn that lie in memory. It works on the training
thread, and holds and frees the GIL as a real one does. A loader that makes it wait for the GIL, or
that frees big memory under it, shows here and not in a rate. Steps take about 5, 20 and 100 ms;
`jpeg` is fed to the longest alone, as one worker makes no more. Beside the length of a step: the
slowest in a thousand of the loop's calls of `next()`, and how late a thread of the same process
wakes up that sleeps for a millisecond, again and again. It is late where somebody holds the GIL,
and where the machine has no core for it, so see it beside "no loader".
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks import fresh
from benchmarks.consumer import Device
from benchmarks.contestants import OURS, TORCH
from benchmarks.datasets import cut_jpegs
from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.spread import Spread, ratios, spread
from benchmarks.workloads import Workload, table_workloads

_ALONE = "no loader"
_SIDE = 256
_NB_WORKER = 1  # a core for the training process, a core for the worker
_MODULES = {OURS: "benchmarks.ours", TORCH: "benchmarks.peers.torch_dataloader"}
_CASES = {  # milliseconds of a step: how many, and fed with what
    5: (1000, ("image-u8", "many")),
    20: (400, ("image-u8", "many")),
    100: (80, ("image-u8", "many", "jpeg")),
}
_WARM_STEPS = 20
_NB_MADE = 20  # batches that are there: one alone would stay in the processor's cache
_BAR = 1.02
_MOST_JITTER_S = 0.001
_TICK_S = 0.001


class Step:
    """A training step: copy the batch, then `nb_matmul` small matmuls."""

    def __init__(self, batch: Any, nb_matmul: int) -> None:
        import torch

        torch.set_num_threads(1)
        self._device = Device(batch)
        self._nb_matmul = nb_matmul
        self._weights = torch.rand(_SIDE, _SIDE) / _SIDE
        self._out = torch.empty(_SIDE, _SIDE)
        self._matmul = torch.mm

    def __call__(self, batch: Any) -> None:
        self._device.take(batch)
        for _ in range(self._nb_matmul):
            self._matmul(self._weights, self._weights, out=self._out)


def matmul_s() -> float:
    """Of one matmul, the median of a few hundred."""
    step, times_s = Step([], 1), []
    for _ in range(500):
        start_s = perf_counter()
        step([])
        times_s.append(perf_counter() - start_s)
    return float(np.median(times_s))


def step_s(contestant: str, workload: Workload, nb_step: int, nb_matmul: int) -> dict[str, float]:
    """Seconds of a step, of the slowest calls of `next()`, and of the ticks that came late."""
    if contestant == _ALONE:
        from torch.utils.data import default_collate

        dataset, size = workload.dataset(), workload.batch_size
        made = [
            default_collate([dataset[index] for index in range(k * size, (k + 1) * size)])
            for k in range(_NB_MADE)
        ]
        return _times(itertools.cycle(made), nb_matmul, nb_step)
    with import_module(_MODULES[contestant]).batches(workload, _NB_WORKER) as batches:
        return _times(batches, nb_matmul, nb_step)


def _times(batches: Iterator[Any], nb_matmul: int, nb_step: int) -> dict[str, float]:
    step = Step(next(batches), nb_matmul)
    for _ in range(_WARM_STEPS - 1):
        step(next(batches))
    steps_s, waits_s = [], []
    with _ticking() as late_s:
        end_s = perf_counter()
        for _ in range(nb_step):
            start_s = end_s
            batch = next(batches)
            waits_s.append(perf_counter() - start_s)
            step(batch)
            del batch
            end_s = perf_counter()
            steps_s.append(end_s - start_s)
    return {
        "mean_s": float(np.mean(steps_s)),
        "next_s": float(np.percentile(waits_s, 99.9)),
        "late_s": float(np.percentile(late_s, 99.9)),
    }


@contextmanager
def _ticking() -> Iterator[list[float]]:
    """How late each tick of another thread came, in seconds."""
    late_s: list[float] = []
    over = threading.Event()

    def tick() -> None:
        while not over.is_set():
            start_s = perf_counter()
            time.sleep(_TICK_S)
            late_s.append(perf_counter() - start_s - _TICK_S)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield late_s
    finally:
        over.set()
        thread.join()


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Time of a step with a loader over the time of the same step on batches in memory."""
    figures = []
    one_s = fresh.call(matmul_s)
    with tempfile.TemporaryDirectory() as folder:
        cut_jpegs(Path(folder))
        workloads = table_workloads(folder)
        for length_ms, (nb_step, names) in _CASES.items():
            for name in names:
                probes = {
                    who: partial(
                        step_s,
                        contestant=who,
                        workload=workloads[name],
                        nb_step=nb_step // 4 if is_quick else nb_step,
                        nb_matmul=max(1, round(length_ms / 1e3 / one_s)),
                    )
                    for who in [_ALONE, *_MODULES]
                }
                figures += _figures(f"{length_ms} ms, {name}", probes, is_quick)
    return figures


def _figures(title: str, probes: dict[str, partial[Any]], is_quick: bool) -> list[Figure]:
    rounds = measure_in_turn(f"step-time, {title}", probes, is_quick, rounds=1 if is_quick else 3)
    figures = []
    alone = rounds.column(_ALONE, "mean_s")
    for who in _MODULES:
        mine = rounds.column(who, "mean_s")
        if not mine or not alone:
            continue
        late = {one: _ms(rounds.column(one, "late_s")) for one in (who, _ALONE)}
        figures += [
            Figure(
                "step-time",
                f"{title}: step with {who} over the step alone",
                ratios(mine, alone),
                bar=_BAR if who == OURS else None,
                ours=f"{spread(mine).median * 1e3:.2f} ms",
                theirs=f"{spread(alone).median * 1e3:.2f} ms alone",
            ),
            Figure(
                "step-time",
                f"{title}: a tick in a thousand comes late by, {who}",
                late[who],
                unit="ms",
                theirs=f"{late[_ALONE]} ms with no loader",
            ),
        ]
    ours, theirs = (rounds.column(who, "next_s") for who in _MODULES)
    if ours and theirs:
        figures.append(
            Figure(
                "step-time",
                f"{title}: next(), the slowest in a thousand, beyond torch's",
                _ms([a - b for a, b in zip(ours, theirs, strict=True)]),
                unit="ms",
                bar=_MOST_JITTER_S * 1e3,
                ours=f"{_ms(ours)} ms",
                theirs=f"{_ms(theirs)} ms",
            )
        )
    return figures


def _ms(values_s: list[float]) -> Spread:
    return spread([value * 1e3 for value in values_s])


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "step-time"])
