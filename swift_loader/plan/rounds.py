"""A source's own rounds: in each of them, every sample comes once, in an order of its own. Pure.

Samples are numbered in the order in which they come. A source that has grown goes on to the end of
the round that is begun with what it had; the next round has all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .shuffle import shuffled

__all__ = ["Round", "are_rounds", "samples_of"]

Round = tuple[int, int, int]
"""``(first, number, size)``: from sample number `first` on, rounds have `size` samples, and count
from `number`."""


def are_rounds(rounds: Sequence[Round]) -> bool:
    """Whether a source's rounds can be these."""
    ascend = all(a[0] <= b[0] for a, b in pairwise(rounds))
    return bool(rounds) and ascend and all(size > 0 for _, _, size in rounds)


def samples_of(
    rounds: Sequence[Round], number: int, count: int, window: int, seed: int | None
) -> NDArray[np.int64]:
    """The samples with the numbers ``[number, number + count)``: a new int64 array.

    `seed` None: each round is ``0, 1, ...``. Time and memory are those of `shuffled`, for each
    round that is touched.
    """
    at = max(0, bisect_right(rounds, number, key=_first) - 1)
    pieces = []
    while count:
        first, round_, size = rounds[at]
        done, place = divmod(number - first, size)
        take = min(count, size - place)
        if at + 1 < len(rounds) and number + take >= rounds[at + 1][0]:
            at += 1
            take = rounds[at][0] - number
        if seed is None:
            piece = np.arange(place, place + take, dtype=np.int64)
        else:
            piece = shuffled(
                place, place + take, nb_samples=size, window=window, seed=seed, epoch=round_ + done
            )
        pieces.append(piece)
        number, count = number + take, count - take
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _first(round_: Round) -> int:
    return round_[0]
