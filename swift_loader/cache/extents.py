"""Where samples lie in the store's memory: a bound on pages, in a span that is larger. Pure.

The span is address space of an anonymous file, several times as long as the bound: so a hole that
fits is always found, and nothing is thrown out only to make room that is contiguous. What counts
against the bound are pages that something lies on. A page that nothing lies on any more is given
back to the system.

Memory may be made in whole blocks, ahead of what will lie there. All their pages count.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

__all__ = ["BLOCK_BYTES", "Extents", "extent_of"]

#: a large page of the processor
BLOCK_BYTES = 1 << 21
_ALIGNMENT_BYTES = 64


def extent_of(nbytes: int) -> int:
    """What `nbytes` take, in memory and in files."""
    return -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


class Extents:
    """Extents of a span of `span` bytes, on pages of `page` bytes; `resident` bytes of them."""

    def __init__(self, span: int, page: int) -> None:
        self._page, self._span = page, span
        self._by_size: list[tuple[int, int]] = [(span, 0)]  # holes: size, start
        self._size_at = {0: span}
        self._start_before = {span: 0}  # by the end of a hole
        self._shared: dict[int, int] = {}  # pages that extents begin or end on: how many do
        self.whole = 0  # so far, blocks were made whole
        self._ready = 0, 0  # pages of these that nothing has lain on yet: first, and end
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
        ready, end = self._ready
        if ready < end:
            pages -= max(0, min(last + 1, end) - max(first, ready))
        return pages * self._page

    def take_run(self, start: int, sizes: Sequence[int]) -> None:
        """Extents one after the other, the first of them at the start of a hole."""
        page, shared = self._page, self._shared
        size, nbytes = self._size_at[start], sum(sizes)
        self.resident += self.cost(start, nbytes)
        at = start
        for each in sizes:
            first = at // page
            at += each
            last = (at - 1) // page
            shared[first] = shared.get(first, 0) + 1
            if last != first:
                shared[last] = shared.get(last, 0) + 1
        ready, end = self._ready
        if start // page < end and ready <= last:
            self._ready = min(last + 1, end), end
        self._remove(start, size)
        if size > nbytes:
            self._add(at, size - nbytes)

    def blocks_for(self, nbytes: int, left: int) -> list[int]:
        """Blocks that are worth making before extents of `nbytes` together are taken, where `left`
        bytes more may be resident.

        The first extents lie one after the other, from the beginning on. So do blocks, and what
        one of them has not made whole is left to pages.
        """
        rest = self._by_size[-1][1] if self._by_size else self._span  # the largest hole
        if rest > self.whole:
            return []
        missing = -(-(rest + nbytes - self.whole) // BLOCK_BYTES)
        most = min(left, self._span - self.whole) // BLOCK_BYTES
        return [self.whole + BLOCK_BYTES * number for number in range(min(missing, most))]

    def made_whole(self, block: int) -> None:
        """The first of those blocks is there, though nothing lies on its pages yet."""
        start, (ready, end) = block // self._page, self._ready
        self.whole = block + BLOCK_BYTES
        stop = self.whole // self._page
        # An extent may reach into it.
        self._ready = (ready if ready < end else start + (start in self._shared)), stop
        self.resident += (stop - max(end, self._ready[0])) * self._page

    def give_ready(self) -> tuple[int, int] | None:
        """``(start, bytes)`` of the pages that were ready, and don't count any more."""
        ready, end = self._ready
        self._ready = 0, 0
        if ready == end:
            return None
        self.resident -= (end - ready) * self._page
        return ready * self._page, (end - ready) * self._page

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
