"""What the fields of a `MixturePlan` can be: it may come out of a state, or over a network."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

from .rounds import are_rounds

if TYPE_CHECKING:
    from .mixture import MixturePlan

__all__ = ["MOST_OF_BATCH", "MOST_SAMPLES", "Exhausted", "Hole", "Weights", "wrong_field"]

Exhausted = Literal["repeat", "stop", "drop"]
Weights = tuple[float, ...]
Hole = tuple[int, int, int, int]
"""``(position, source, sample number, samples)``."""

MOST_SAMPLES = 2**62
MOST_OF_BATCH = 2**20
"""Samples that one position may stand for. More would take a worker minutes, or its memory."""
_MOST_WEIGHT = 2.0**60


def wrong_field(mixture: MixturePlan) -> str:
    """The first field that can't be; else nothing."""
    nb_sources = len(mixture.names)
    for name in ("names", "lengths", "batch_sizes", "counts", "debts", "rounds", "limits"):
        if len(getattr(mixture, name)) not in (nb_sources, 0 if name == "limits" else nb_sources):
            return name
    steps = [step for step, _ in mixture.table]
    bad = {
        "names": not nb_sources or len(set(mixture.names)) < nb_sources,
        "table": not steps
        or any(a >= b for a, b in pairwise(steps))
        or not all(_are_weights(weights, nb_sources) for _, weights in mixture.table),
        "lengths": min(mixture.lengths, default=0) < 1 or sum(mixture.lengths) > MOST_SAMPLES,
        "batch_sizes": not all(1 <= size <= MOST_OF_BATCH for size in mixture.batch_sizes),
        "limits": min(mixture.limits, default=0) < 0,
        "rounds": not all(are_rounds(rounds) for rounds in mixture.rounds),
        "holes": not all(
            0 <= place < mixture.first_position and 0 <= source < nb_sources and size > 0
            for place, source, _, size in mixture.holes
        ),
        "step_positions": mixture.step_positions < 1,
        "exhausted": mixture.exhausted not in get_args(Exhausted),
        "first_position": not 0 <= mixture.first_position <= mixture.nb_positions,
    }
    return next((name for name, is_bad in bad.items() if is_bad), "")


def _are_weights(weights: Weights, nb_sources: int) -> bool:
    fit = len(weights) == nb_sources and all(0 <= weight < _MOST_WEIGHT for weight in weights)
    return fit and sum(weights) > 0
