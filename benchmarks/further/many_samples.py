"""What a billion shuffled samples cost: later first batch and more memory than ten thousand.

torch's ``RandomSampler`` holds every index of the epoch as a Python list; it is shown at 10^7,
since 10^9 would take tens of gigabytes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks import fresh
from benchmarks.datasets import Rows
from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.processes import total_pss_bytes
from benchmarks.spread import Spread, spread
from benchmarks.workloads import Workload

_NB_WORKER = 2
_NB_BATCH = 20
_LATER_BAR_MS = 50.0
_MORE_BAR_MB = 10.0


def _workload(nb_samples: int) -> Workload:
    return Workload("tabular", Rows, 256, {"nb_samples": nb_samples})


def ours(nb_samples: int, nearby_shuffle: int) -> dict[str, float]:
    """Seconds to the first batch, and the memory of all processes after a few."""
    import torch

    from benchmarks.ours import loader

    with loader(_workload(nb_samples), _NB_WORKER, nearby_shuffle=nearby_shuffle) as ready:
        start_s = perf_counter()
        ready.start(consumer_index=0, device=torch.device("cpu"))
        batches = iter(ready)
        next(batches)
        first_batch_s = perf_counter() - start_s
        for _ in range(_NB_BATCH):
            next(batches)
        return {"first_batch_s": first_batch_s, "pss_bytes": float(total_pss_bytes())}


def torchs(nb_samples: int) -> dict[str, float]:
    """The same of torch's DataLoader."""
    from benchmarks.peers.torch_dataloader import loader

    ready = loader(_workload(nb_samples), _NB_WORKER)
    start_s = perf_counter()
    batches = iter(ready)
    next(batches)
    first_batch_s = perf_counter() - start_s
    for _ in range(_NB_BATCH):
        next(batches)
    return {"first_batch_s": first_batch_s, "pss_bytes": float(total_pss_bytes())}


def _difference(many: list[float], few: list[float], scale: float) -> Spread:
    return spread([(a - b) * scale for a, b in zip(many, few, strict=True)])


def run(is_quick: bool, out: Path) -> list[Figure]:
    """How much later the first batch comes, and how much more memory is held."""
    figures = []
    for how, window in [("full shuffle", 0), ("nearby shuffle", 5 * 256)]:
        rounds = measure_in_turn(
            f"many-samples, {how}",
            {
                "few": partial(ours, nb_samples=10**4, nearby_shuffle=window),
                "many": partial(ours, nb_samples=10**9, nearby_shuffle=window),
            },
            is_quick,
            fresh.call_from_nothing,
        )
        if rounds.failures:
            continue
        later = [rounds.column(name, "first_batch_s") for name in ("many", "few")]
        more = [rounds.column(name, "pss_bytes") for name in ("many", "few")]
        figures += [
            Figure(
                "many-samples",
                f"{how}: first batch of 10^9 later than of 10^4",
                _difference(later[0], later[1], 1e3),
                unit="ms",
                bar=_LATER_BAR_MS,
                ours=f"{spread(later[0]).median * 1e3:.0f} ms",
            ),
            Figure(
                "many-samples",
                f"{how}: more memory for 10^9 than for 10^4",
                _difference(more[0], more[1], 1e-6),
                unit="MB",
                bar=_MORE_BAR_MB,
                ours=f"{spread(more[0]).median / 1e6:.0f} MB",
            ),
        ]
    rounds = measure_in_turn(
        "many-samples, torch DataLoader",
        {
            "few": partial(torchs, nb_samples=10**4),
            "many": partial(torchs, nb_samples=10**7),
        },
        is_quick,
        fresh.call_from_nothing,
        rounds=1,
    )
    for what, key, scale, unit in [
        ("first batch of 10^7 later", "first_batch_s", 1e3, "ms"),
        ("more memory for 10^7", "pss_bytes", 1e-6, "MB"),
    ]:
        figures.append(
            Figure(
                "many-samples",
                f"torch DataLoader: {what} than 10^4",
                _difference(rounds.column("many", key), rounds.column("few", key), scale),
                unit=unit,
            )
        )
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "many-samples"])
