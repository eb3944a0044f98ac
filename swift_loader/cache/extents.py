"""Where samples lie in the store's memory: a bound on pages, in a span that is larger. Pure.

The span is address space of an anonymous file, several times as long as the bound: so a hole that
fits is always found, and nothing is thrown out only to make room that is contiguous. What counts
against the bound are pages that something lies on. A page that nothing lies on any more is given
back to the system.
"""

from __future__ import annotations

from bisect import bisect_left, insort

__all__ = ["Extents", "extent_of"]

_ALIGNMENT_BYTES = 64


def extent_of(nbytes: int) -> int:
    """What `nbytes` take, in memory and in files."""
    return -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


class Extents:
    """Extents of a span of `span` bytes, on pages of `page` bytes; `resident` bytes of them."""

    def __init__(self, span: int, page: int) -> None:
        self._page = page
        self._by_size: list[tuple[int, int]] = [(span, 0)]  # holes: size, start
        self._size_at = {0: span}
        self._start_before = {span: 0}  # by the end of a hole
        self._shared: dict[int, int] = {}  # pages that extents begin or end on: how many do
        self.resident = 0

    def hole(self, nbytes: int) -> int | None:
        """Where the smallest hole for `nbytes` begins; None where there is none."""
        at = bisect_left(self._by_size, (nbytes, 0))
        return self._by_size[at][1] if at < len(self._by_size) else None

    def cost(self, start: int, nbytes: int) -> int:
        """Bytes of pages that nothing lies on yet, of ``[start, start + nbytes)``."""
        first, last = start // self._page, (start + nbytes - 1) // self._page
        pages = last - first + 1 - (first in self._shared)
        if last != first:
            pages -= last in self._shared
        return pages * self._page

    def take(self, start: int, nbytes: int) -> None:
        """An extent at the start of a hole, of `nbytes`, which are some `extent_of`."""
        self.resident += self.cost(start, nbytes)
        for page in self._edges(start, nbytes):
            self._shared[page] = self._shared.get(page, 0) + 1
        size = self._size_at[start]
        self._remove(start, size)
        if size > nbytes:
            self._add(start + nbytes, size - nbytes)

    def give(self, start: int, nbytes: int) -> tuple[int, int] | None:
        """Let an extent go. ``(start, bytes)`` of whole pages that nothing lies on now."""
        first, last = start // self._page, (start + nbytes - 1) // self._page
        for page in self._edges(start, nbytes):
            left = self._shared.pop(page) - 1
            if left:
                self._shared[page] = left
        free_first = first + (first in self._shared)
        free_last = last - (last != first and last in self._shared)
        pages = max(0, free_last - free_first + 1)
        self.resident -= pages * self._page
        size = nbytes
        after = self._size_at.get(start + nbytes)
        if after is not None:
            self._remove(start + nbytes, after)
            size += after
        before = self._start_before.get(start)
        if before is not None:
            self._remove(before, start - before)
            size, start = size + start - before, before
        self._add(start, size)
        return (free_first * self._page, pages * self._page) if pages else None

    def _edges(self, start: int, nbytes: int) -> set[int]:
        return {start // self._page, (start + nbytes - 1) // self._page}

    def _add(self, start: int, size: int) -> None:
        insort(self._by_size, (size, start))
        self._size_at[start] = size
        self._start_before[start + size] = start

    def _remove(self, start: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, start))]
        del self._size_at[start]
        del self._start_before[start + size]
