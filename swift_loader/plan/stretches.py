"""Several stretches of a mixture at once: the batches of one consumer among others.

Its batches stand between those of the others, so each is a stretch of its own. Looking up all that
lies between the first and the last one costs less than looking up each by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .mixture import MixturePlan, Shuffling
from .partition import Span, ascend

__all__ = ["indices_of"]

_SPARSE = 64
"""From so many positions for each that is wanted on, each stretch is looked up by itself."""


def indices_of(
    mixture: MixturePlan, epoch: int, spans: Sequence[Span], shuffling: Shuffling
) -> NDArray[np.int64]:
    """Sample indices at the positions of `spans`, one span after the other; at least one span."""
    if len(spans) == 1:
        return mixture.indices(epoch, *spans[0], shuffling)
    first, last = spans[0][0], spans[-1][1]
    wanted = sum(stop - start for start, stop in spans)
    size = mixture.batch_sizes[0]
    of_one_size = set(mixture.batch_sizes) == {size} and first >= mixture.first_position
    if of_one_size and ascend(spans) and last - first <= _SPARSE * wanted:
        found = mixture.indices(epoch, first, last, shuffling)
        pieces = [found[size * (start - first) : size * (stop - first)] for start, stop in spans]
    else:
        pieces = [mixture.indices(epoch, *span, shuffling) for span in spans]
    return np.concatenate(pieces)
