"""How the cost of a batch grows: with its bytes, its tensors, the workers, the samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.contestants import OURS, TORCH
from benchmarks.datasets import Bytes, ManyTensors, Rows, Tokens
from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.plot import save
from benchmarks.spread import Spread, spread
from benchmarks.workloads import Workload

_BATCH_SIZE = 8
_TORCH_MOST_SAMPLES = 10**6  # beyond, its sampler makes lists of gigabytes
_WINDOW: dict[str, Any] = {"warm_s": 0.2, "warm_batches": 16, "window_s": 0.4}


@dataclass(frozen=True)
class Sweep:
    """One quantity that grows: a workload and a number of workers for each of its values."""

    name: str
    cases: Mapping[int, tuple[Workload, int]]
    shown_in_quick: tuple[int, ...]
    torch_up_to: int = 10**15


def sweeps() -> list[Sweep]:
    """All four."""
    return [
        Sweep(
            "bytes a batch",
            {
                1 << power: (
                    Workload(
                        "bytes",
                        Bytes,
                        _BATCH_SIZE,
                        {"nb_bytes": (1 << power) // _BATCH_SIZE},
                        **_WINDOW,
                    ),
                    2,
                )
                for power in (10, 14, 18, 22, 26, 28)
            },
            (1 << 10, 1 << 22),
        ),
        Sweep(
            "tensors a batch",
            {
                nb_tensors: (
                    Workload(
                        "tensors", ManyTensors, _BATCH_SIZE, {"nb_tensors": nb_tensors}, **_WINDOW
                    ),
                    2,
                )
                for nb_tensors in (4, 32, 128, 1000)
            },
            (4, 128),
        ),
        Sweep(
            "workers",
            {
                nb_worker: (Workload("tokens", Tokens, 32, **_WINDOW), nb_worker)
                for nb_worker in (1, 2, 4, 8)
            },
            (1, 4),
        ),
        Sweep(
            "samples",
            {
                10**power: (
                    Workload("samples", Rows, _BATCH_SIZE, {"nb_samples": 10**power}, **_WINDOW),
                    2,
                )
                for power in (3, 6, 9, 12)
            },
            (10**3, 10**12),
            torch_up_to=_TORCH_MOST_SAMPLES,
        ),
    ]


def _contestants(sweep: Sweep, value: int) -> list[str]:
    return [OURS, TORCH] if value <= sweep.torch_up_to else [OURS]


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Microseconds a batch for each value, ours and torch's, and ``scaling.png`` in `out`."""
    figures = []
    costs: dict[str, dict[str, dict[int, Spread]]] = {}
    for sweep in sweeps():
        for value, (workload, nb_worker) in sweep.cases.items():
            if is_quick and value not in sweep.shown_in_quick:
                continue
            rounds = measure_in_turn(
                f"scaling, {value} {sweep.name}",
                {
                    who: partial(
                        measure.run, contestant=who, workload=workload, nb_worker=nb_worker
                    )
                    for who in _contestants(sweep, value)
                },
                is_quick,
                rounds=1 if is_quick else 3,
            )
            for who in rounds.answers:
                rates = rounds.column(who, "batches_per_s")
                if not rates:
                    continue
                cost = spread([1e6 / rate for rate in rates])
                costs.setdefault(sweep.name, {}).setdefault(who, {})[value] = cost
                figures.append(Figure("scaling", f"{value:,} {sweep.name}: {who}", cost, unit="us"))
    if costs:
        _plot(costs, out / "scaling")
    return figures


def _plot(costs: Mapping[str, Mapping[str, Mapping[int, Spread]]], path: Path) -> None:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(4 * len(costs), 3.5))
    for number, (name, by_contestant) in enumerate(costs.items()):
        axes = canvas.add_subplot(1, len(costs), number + 1)
        for who, by_value in by_contestant.items():
            axes.errorbar(
                list(by_value),
                [cost.median for cost in by_value.values()],
                yerr=[
                    [cost.median - cost.low for cost in by_value.values()],
                    [cost.high - cost.median for cost in by_value.values()],
                ],
                label=who,
                marker="o",
                color="black" if who == OURS else None,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(name)
        axes.set_ylabel("microseconds a batch")
        axes.legend(fontsize="small")
    canvas.tight_layout()
    save(canvas, path)


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "scaling"])
