"""50 epochs: memory stays flat and descriptors stay the same, over all processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks import fresh
from benchmarks.datasets import Images
from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.processes import total_descriptors, total_pss_bytes
from benchmarks.spread import spread
from benchmarks.workloads import Workload

_NB_EPOCH = 50
_WARM_EPOCHS = 10  # by then every slot has been made and touched
_NB_BATCH = 20
_FLAT_MB = 2.0  # what an allocator may move without any leak
_WORKLOAD = Workload(
    "image-u8", Images, 64, {"dtype": "uint8", "nb_images": 64, "nb_samples": 64 * _NB_BATCH}
)


def ours() -> dict[str, float]:
    """Memory and descriptors after the first epochs, and after all."""
    from benchmarks.ours import loader

    with loader(_WORKLOAD, 2) as ready:
        _epochs(ready, _WARM_EPOCHS)
        early_bytes, early_descriptors = total_pss_bytes(), total_descriptors()
        _epochs(ready, _NB_EPOCH - _WARM_EPOCHS)
        return {
            "growth_bytes": float(total_pss_bytes() - early_bytes),
            "more_descriptors": float(total_descriptors() - early_descriptors),
            "early_bytes": float(early_bytes),
        }


def _epochs(loader: object, nb_epoch: int) -> None:
    for _ in range(nb_epoch):
        for _ in loader:  # type: ignore[attr-defined]
            pass


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Growth from epoch 10 to epoch 50."""
    rounds = measure_in_turn(
        "endurance",
        {"ours": partial(ours)},
        is_quick,
        fresh.call_from_nothing,
        rounds=1 if is_quick else 3,
    )
    if rounds.failures:
        return []
    return [
        Figure(
            "endurance",
            f"memory of all processes, epoch {_WARM_EPOCHS} to {_NB_EPOCH}",
            spread([growth / 1e6 for growth in rounds.column("ours", "growth_bytes")]),
            unit="MB",
            bar=_FLAT_MB,
            ours=f"{rounds.column('ours', 'early_bytes')[0] / 1e6:.0f} MB in all",
        ),
        Figure(
            "endurance",
            f"open descriptors, epoch {_WARM_EPOCHS} to {_NB_EPOCH}",
            spread(rounds.column("ours", "more_descriptors")),
            unit="more",
            bar=0.0,
        ),
    ]


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "endurance"])
