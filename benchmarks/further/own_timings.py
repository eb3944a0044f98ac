"""What the loader's own timings (``benchmark=True``, the default) cost in batches a second."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.datasets import Images, Rows, Tokens
from benchmarks.figures import Figure, over
from benchmarks.further.pairs import measure_in_turn
from benchmarks.measure import batches_per_s
from benchmarks.workloads import Workload

_BAR = 0.97
WORKLOADS = {
    "tiny": Workload("tiny", Rows, 8),
    "tokens": Workload("tokens", Tokens, 32),
    "image-u8": Workload("image-u8", Images, 64, {"dtype": "uint8"}),
}


def rate(workload: Workload, benchmark: bool) -> dict[str, float]:
    """Batches a second with or without timings."""
    from benchmarks.ours import batches

    with batches(workload, 2, benchmark=benchmark) as stream:
        return batches_per_s(stream, workload.window_s, workload.warm_s, workload.warm_batches)


def run(is_quick: bool, out: Path) -> list[Figure]:
    """The rate with timings over the rate without, in many rounds: the effect is small."""
    figures = []
    for name, workload in WORKLOADS.items():
        timed = replace(workload, window_s=0.5 if is_quick else 1.0)
        rounds = measure_in_turn(
            f"own-timings, {name}",
            {
                "with": partial(rate, workload=timed, benchmark=True),
                "without": partial(rate, workload=timed, benchmark=False),
            },
            is_quick,
            rounds=3 if is_quick else 11,
        )
        on, off = (rounds.column(how, "batches_per_s") for how in ("with", "without"))
        if on and off:
            figures.append(
                over(
                    "own-timings",
                    f"{name}: batches/s with benchmark=True over without",
                    on,
                    off,
                    _BAR,
                )
            )
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "own-timings"])
