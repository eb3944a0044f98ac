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


def covering(setups: Sequence[Setup], together: int = 2) -> list[Setup]:
    """A few of `setups` in which each pair of values that occurs in any of them occurs too, or
    each value, or so many `together`.
    """
    bits: dict[tuple[Any, ...], int] = {}
    candidates = [(setup, _groups(setup, bits, together)) for setup in setups]
    left = (1 << len(bits)) - 1
    chosen: list[Setup] = []
    while left:
        setup, pairs = max(candidates, key=lambda one: (one[1] & left).bit_count())
        chosen.append(setup)
        left &= ~pairs
    return chosen


def _groups(setup: Setup, bits: dict[tuple[Any, ...], int], together: int) -> int:
    """A bit for each group of values: with so many set-ups, sets would take seconds."""
    groups = combinations(setup.items(), together)
    return sum(1 << bits.setdefault(group, len(bits)) for group in groups)


def name_of(setup: Setup) -> str:
    """For the test's id."""
    return " ".join(f"{key}={value}" for key, value in setup.items()).replace(" ", "_")
