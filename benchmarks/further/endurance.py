"""50 epochs: memory stays flat and descriptors stay the same, over all processes."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import fresh
from benchmarks.datasets import Images
from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.processes import total_descriptors, total_pss_bytes
from benchmarks.spread import spread
from benchmarks.workloads import Workload

_NB_EPOCH = 50
_WARM_EPOCHS = 20  # slots are made when they are first needed; by now all should be there,
_SLOW_STEP_S = 0.03  # since at first the training loop lets the workers run ahead
_NB_BATCH = 20
_FLAT_MB = 2.0  # what an allocator may move without any leak
_WORKLOAD = Workload(
    "image-u8", Images, 64, {"dtype": "uint8", "nb_images": 64, "nb_samples": 64 * _NB_BATCH}
)


def ours() -> dict[str, Any]:
    """Memory and descriptors every 10 epochs."""
    from benchmarks.ours import loader

    pss_bytes, nb_descriptors = {}, {}
    with loader(_WORKLOAD, 2) as ready:
        _epochs(ready, 2, _SLOW_STEP_S)
        for epoch in range(10, _NB_EPOCH + 1, 10):
            _epochs(ready, 10)
            pss_bytes[epoch], nb_descriptors[epoch] = total_pss_bytes(), total_descriptors()
    return {
        "growth_bytes": pss_bytes[_NB_EPOCH] - pss_bytes[_WARM_EPOCHS],
        "more_descriptors": nb_descriptors[_NB_EPOCH] - nb_descriptors[_WARM_EPOCHS],
        "pss_mb": [each // 10**6 for each in pss_bytes.values()],
        "nb_descriptors": list(nb_descriptors.values()),
    }


def _epochs(loader: Any, nb_epoch: int, step_s: float = 0.0) -> None:
    for _ in range(nb_epoch):
        for _ in loader:
            time.sleep(step_s)


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Growth from epoch 20 to epoch 50."""
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
            ours=f"{rounds.answers['ours'][-1]['pss_mb']} MB every 10 epochs",
        ),
        Figure(
            "endurance",
            f"open descriptors, epoch {_WARM_EPOCHS} to {_NB_EPOCH}",
            spread(rounds.column("ours", "more_descriptors")),
            unit="more",
            bar=0.0,
            ours=f"{rounds.answers['ours'][-1]['nb_descriptors']}",
        ),
    ]


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "endurance"])
