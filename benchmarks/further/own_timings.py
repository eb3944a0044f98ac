"""What the loader's own timings (``benchmark=True``, the default) cost in batches a second."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks.consumer import Device
from benchmarks.datasets import Images, Rows, Tokens
from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.spread import ratios, spread
from benchmarks.workloads import Workload

_BAR = 0.97
WORKLOADS = {
    "tiny": Workload("tiny", Rows, 8),
    "tokens": Workload("tokens", Tokens, 32),
    "image-u8": Workload("image-u8", Images, 64, {"dtype": "uint8"}),
}


def rate(workload: Workload, benchmark: bool) -> dict[str, float]:
    """Batches a second with or without timings."""
    import torch

    from benchmarks.ours import batches

    torch.set_num_threads(1)
    with batches(workload, 2, benchmark=benchmark) as stream:
        device = Device(next(stream))
        warm_until_s, nb_warm = perf_counter() + workload.warm_s, 0
        while nb_warm < workload.warm_batches or perf_counter() < warm_until_s:
            device.take(next(stream))
            nb_warm += 1
        start_s, nb_batch = perf_counter(), 0
        while (elapsed_s := perf_counter() - start_s) < workload.window_s:
            device.take(next(stream))
            nb_batch += 1
    return {"batches_per_s": nb_batch / elapsed_s}


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
                Figure(
                    "own-timings",
                    f"{name}: batches/s with benchmark=True over without",
                    ratios(on, off),
                    bar=_BAR,
                    bound="at least",
                    ours=str(spread(on)),
                    theirs=str(spread(off)),
                )
            )
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "own-timings"])
