"""A choice out of all combinations: each two values of different axes meet at least once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Setup = dict[str, Any]


def every(axes: Mapping[str, Sequence[Any]], valid: Callable[[Setup], bool]) -> list[Setup]:
    """All valid combinations, in order."""
    made = (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
    return [setup for setup in made if valid(setup)]


def covering(setups: Sequence[Setup]) -> list[Setup]:
    """A few of `setups` in which each pair of values that occurs in any of them occurs too."""
    left = {pair for setup in setups for pair in _pairs(setup)}
    chosen: list[Setup] = []
    candidates = [(setup, _pairs(setup)) for setup in setups]
    while left:
        setup, pairs = max(candidates, key=lambda one: len(one[1] & left))
        chosen.append(setup)
        left -= pairs
    return chosen


def _pairs(setup: Setup) -> set[tuple[Any, ...]]:
    return {(a, repr(x), b, repr(y)) for (a, x), (b, y) in combinations(setup.items(), 2)}


def name_of(setup: Setup) -> str:
    """For the test's id."""
    return " ".join(f"{key}={value}" for key, value in setup.items()).replace(" ", "_")
