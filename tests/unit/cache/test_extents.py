"""Extents never overlap, and the pages that they lie on are counted exactly."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from swift_loader.cache.extents import BLOCK_BYTES, Extents

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
            extents.take_run(start, [nbytes])
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


def _pages(taken: list[tuple[int, int]], page_bytes: int = _PAGE) -> set[int]:
    return {
        page
        for start, nbytes in taken
        for page in range(start // page_bytes, (start + nbytes - 1) // page_bytes + 1)
    }


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12 * _PAGE // 64)), max_size=60))
def test_pages_of_blocks_are_counted_once_whatever_lies_on_them(
    steps: list[tuple[int, int]],
) -> None:
    page = BLOCK_BYTES // 16
    extents = Extents(8 * BLOCK_BYTES, page)
    taken: list[tuple[int, int]] = []
    ready: set[int] = set()
    for kind, number in steps:
        nbytes = number * (page // 16)
        if kind == 0 and taken:
            start, nbytes = taken.pop(number % len(taken))
            extents.give(start, nbytes)
        elif kind == 1:
            for block in extents.blocks_for(nbytes, 8 * BLOCK_BYTES - extents.resident):
                extents.made_whole(block)
                pages = set(range(block // page, (block + BLOCK_BYTES) // page))
                assert not pages & ready
                ready |= pages - _pages(taken, page)
        elif kind == 2 and number == 1:
            freed = extents.give_ready()
            given = range(freed[0], sum(freed), page) if freed else ()
            assert {start // page for start in given} == ready
            ready.clear()
        else:
            sizes = [nbytes, 64, nbytes]
            hole = extents.hole(sum(sizes))
            if hole is None:
                continue
            before, cost = extents.resident, extents.cost(hole, sum(sizes))
            extents.take_run(hole, sizes)
            assert extents.resident == before + cost
            for size in sizes:
                taken.append((hole, size))
                hole += size
        ready -= _pages(taken, page)
        assert extents.resident == len(_pages(taken, page) | ready) * page
