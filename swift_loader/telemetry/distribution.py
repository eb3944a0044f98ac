"""How long something took, over a run of any length, in 2 KB: counts in buckets of 9%.

After HDR histograms (https://hdrhistogram.org): a bucket is an eighth of an octave wide, from 1 us
to 4 hours, so a quantile is right within 5%. Two of them add up to that of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

__all__ = ["Distribution", "add_rows"]

_PER_OCTAVE = 8
_LOW = -20  # 2^-20 s is about 1 us
_NB = _PER_OCTAVE * 34


class Distribution:
    """Counts of durations, in seconds. `add_rows` counts more, in one thread at a time."""

    __slots__ = ("counts", "longest_s")

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(_NB, np.int64)
        self.longest_s = 0.0

    def copy(self) -> Distribution:
        """One that the next `add_rows` does not change."""
        other = Distribution()
        other.counts = self.counts.copy()
        other.longest_s = self.longest_s
        return other

    def quantile(self, share: float) -> float:
        """The duration that this share of them does not pass; 0 without any."""
        total = int(self.counts.sum())
        if not total:
            return 0.0
        at = int(np.searchsorted(np.cumsum(self.counts), max(1, ceil(share * total))))
        if at == 0:  # too short to be told from nothing
            return 0.0
        middle_s = float(2.0 ** (_LOW + (at + 0.5) / _PER_OCTAVE))
        return min(middle_s, self.longest_s)

    def share_of_longest(self, share: float) -> float:
        """Of all the time, how much the longest `share` of them took: 0.02 of equal ones, 0.02."""
        counts = self.counts.astype(np.float64)
        counts[0] = 0.0
        seconds = counts * 2.0 ** (_LOW + (np.arange(_NB) + 0.5) / _PER_OCTAVE)
        whole_s = float(seconds.sum())
        if whole_s <= 0:
            return 0.0
        left = share * float(self.counts.sum())
        taken_s = 0.0
        for at in np.flatnonzero(counts)[::-1]:
            part = min(1.0, left / counts[at])
            taken_s += part * float(seconds[at])
            left -= part * float(counts[at])
            if left <= 0:
                break
        return taken_s / whole_s


def add_rows(distributions: Sequence[Distribution], values: NDArray[np.float64]) -> None:
    """Count a row of `values` in each of `distributions`: cheaper than one after the other."""
    if not values.size:
        return
    octaves = np.log2(np.maximum(values, 2.0**_LOW)) - _LOW
    places = np.minimum((octaves * _PER_OCTAVE).astype(np.int64), _NB - 1)
    longest = values.max(axis=1)
    for distribution, row, longest_s in zip(distributions, places, longest, strict=True):
        distribution.counts += np.bincount(row, minlength=_NB)
        distribution.longest_s = max(distribution.longest_s, float(longest_s))
