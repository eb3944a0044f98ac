"""Medians and quartiles, which is all the statistics that the tables need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spread:
    """The median of some runs, between their quartiles."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{short(self.median)} ({short(self.low)}-{short(self.high)})"


def spread(values: Sequence[float]) -> Spread:
    """The quartiles of `values`, of which there must be one at least."""
    low, median, high = np.percentile(np.asarray(values, dtype=np.float64), [25, 50, 75])
    return Spread(float(low), float(median), float(high))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """The spread of ours over theirs, round by round."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def short(value: float) -> str:
    """Three digits, and thousands apart."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
