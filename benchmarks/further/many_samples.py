"""What a billion shuffled samples cost: later first batch and more memory than ten thousand.

torch's ``RandomSampler`` holds every index of the epoch as a Python list; it is shown at 10^7,
since 10^9 would take tens of gigabytes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median
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
_FEW, _MANY = 10**4, 10**9
_TORCH_MANY = 10**7
_LATER_BAR_MS = 50.0
_MORE_BAR_MB = 10.0


def _workload(nb_samples: int) -> Workload:
    return Workload("tabular", Rows, 256, {"nb_samples": nb_samples})


def ours_later_s(nearby_shuffle: int, nb_pairs: int) -> dict[str, float]:
    """How many seconds later the first batch comes: the median of pairs, one loader after another.

    A third loader stays open meanwhile, so that no pair waits for an interpreter to start.
    """
    from benchmarks.ours import batches

    def first_batch_s(nb_samples: int) -> float:
        start_s = perf_counter()
        with batches(_workload(nb_samples), _NB_WORKER, nearby_shuffle=nearby_shuffle) as stream:
            next(stream)
            return perf_counter() - start_s

    with batches(_workload(_FEW), _NB_WORKER):
        pairs = [(first_batch_s(_MANY), first_batch_s(_FEW)) for _ in range(nb_pairs)]
    return {
        "later_s": median(many - few for many, few in pairs),
        "first_batch_s": median(many for many, _ in pairs),
    }


def ours(nb_samples: int, nearby_shuffle: int) -> dict[str, float]:
    """The memory of all processes after a few batches."""
    from benchmarks.ours import batches

    with batches(_workload(nb_samples), _NB_WORKER, nearby_shuffle=nearby_shuffle) as stream:
        for _ in range(_NB_BATCH):
            next(stream)
        return {"pss_bytes": float(total_pss_bytes())}


def torchs(nb_samples: int) -> dict[str, float]:
    """The memory, and the seconds to the first batch, of torch's DataLoader."""
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
                "few": partial(ours, nb_samples=_FEW, nearby_shuffle=window),
                "many": partial(ours, nb_samples=_MANY, nearby_shuffle=window),
            },
            is_quick,
            fresh.call_from_nothing,
            rounds=1 if is_quick else 3,
        )
        timed = measure_in_turn(
            f"many-samples, {how}",
            {"pairs": partial(ours_later_s, nearby_shuffle=window, nb_pairs=3 if is_quick else 7)},
            is_quick,
            rounds=1 if is_quick else 3,
        )
        if rounds.failures or timed.failures:
            continue
        more = [rounds.column(name, "pss_bytes") for name in ("many", "few")]
        figures += [
            Figure(
                "many-samples",
                f"{how}: first batch of 10^9 later than of 10^4",
                spread([later * 1e3 for later in timed.column("pairs", "later_s")]),
                unit="ms",
                bar=_LATER_BAR_MS,
                ours=f"{spread(timed.column('pairs', 'first_batch_s')).median * 1e3:.0f} ms",
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
            "few": partial(torchs, nb_samples=_FEW),
            "many": partial(torchs, nb_samples=_TORCH_MANY),
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
