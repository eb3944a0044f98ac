"""Extents never overlap, and the pages that they lie on are counted exactly."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from swift_loader.cache.extents import Extents

_PAGE = 256
_SPAN = 64 * _PAGE


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12 * _PAGE // 64)), max_size=60))
def test_pages_are_counted_and_holes_are_joined(steps: list[tuple[bool, int]]) -> None:
    extents = Extents(_SPAN, _PAGE)
    taken: list[tuple[int, int]] = []
    for add, number in steps:
        nbytes = 64 * number
        if add:
            start = extents.hole(nbytes)
            if start is None:
                continue
            cost = extents.cost(start, nbytes)
            before = extents.resident
            extents.take(start, nbytes)
            assert extents.resident == before + cost
            taken.append((start, nbytes))
        elif taken:
            start, nbytes = taken.pop(number % len(taken))
            freed = extents.give(start, nbytes)
            if freed is not None:
                pages = range(freed[0] // _PAGE, (freed[0] + freed[1]) // _PAGE)
                assert not set(pages) & _pages(taken)
        assert extents.resident == len(_pages(taken)) * _PAGE
        taken.sort()
        assert all(a + n <= b for (a, n), (b, _) in pairwise(taken))
    for start, nbytes in taken:
        extents.give(start, nbytes)
    assert extents.hole(_SPAN) == 0
    assert extents.resident == 0


def _pages(taken: list[tuple[int, int]]) -> set[int]:
    return {
        page
        for start, nbytes in taken
        for page in range(start // _PAGE, (start + nbytes - 1) // _PAGE + 1)
    }
