"""Who gets what: consumers own contiguous parts of a stream, and cut them into batches.

The *stream* is what is dealt out: the positions of all spans, one after the other, numbered from 0.
Everything here is arithmetic on a few integers; nothing grows with the number of samples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

Tail = Literal["balanced", "drop", "pad"]
Span = tuple[int, int]
"""A half-open interval ``(start, stop)`` of positions, or of places in the stream."""


@dataclass(frozen=True)
class Partition:
    """How `nb_positions` places of a stream fall into consumers' parts and batches.

    Every consumer gets the same number of batches, whatever the tail rule:

    ``balanced``
        Parts differ by one place at most, and every place is dealt out exactly once. A last batch
        may be short. Where a longer part needs one batch more than a part of exactly
        ``(nb_batches - 1) * batch_size`` places, the shorter part ends in batches of
        ``batch_size - 1`` and 1. Batches of one place can't be split, so with ``batch_size=1`` the
        longer parts end in a batch of 2 instead. Fewer places than consumers (the crumbs of an
        interrupted epoch) can't be both exactly once and equal in steps: such a stream is padded.
    ``drop``
        Full batches only: the end of each part is left out, ``nb_batches`` may be 0.
    ``pad``
        Every part has ``ceil(nb_positions / nb_consumer)`` places; the last ones wrap round to the
        beginning of the stream. A last batch may be short, equally for all.
    """

    nb_positions: int
    nb_consumer: int
    batch_size: int
    tail: Tail

    @cached_property
    def rule(self) -> Tail:
        """The tail rule that is applied: `tail`, but ``pad`` where balancing is impossible."""
        if self.tail == "balanced" and self.nb_positions < self.nb_consumer:
            return "pad"
        return self.tail

    @cached_property
    def nb_batches(self) -> int:
        """Batches of every consumer."""
        smallest, longer = divmod(self.nb_positions, self.nb_consumer)
        if self.rule == "drop":
            return smallest // self.batch_size
        nb_batches = -(-(smallest + (longer > 0)) // self.batch_size)
        # A part can't make more batches than it has places (batch_size=1, uneven parts).
        return nb_batches if self.rule == "pad" else min(nb_batches, smallest)

    @cached_property
    def nb_padded(self) -> int:
        """Places that are dealt out a second time, over all consumers together."""
        if self.rule != "pad":
            return 0
        return -(-self.nb_positions // self.nb_consumer) * self.nb_consumer - self.nb_positions

    @cached_property
    def nb_dropped(self) -> int:
        """Places that are dealt out to nobody."""
        if self.rule != "drop":
            return 0
        return self.nb_positions - self.nb_batches * self.batch_size * self.nb_consumer

    def segments(self, consumer: int, first: int, last: int) -> list[Span]:
        """Stream intervals of the batches ``[first, last)`` of a consumer, in the order dealt out.

        One interval, or two where a padded part wraps round; none when ``first == last``. Needs
        ``0 <= consumer < nb_consumer`` and ``0 <= first <= last <= nb_batches``.
        """
        smallest, longer = divmod(self.nb_positions, self.nb_consumer)
        rule = self.rule
        if rule == "pad":
            size = smallest + (longer > 0)
            part = consumer * size
        else:
            size = smallest + (consumer < longer)
            part = consumer * smallest + min(consumer, longer)
            if rule == "drop":
                size = self.nb_batches * self.batch_size
        start, stop = part + self._cut(first, size), part + self._cut(last, size)
        if start == stop:
            return []
        nb_positions = self.nb_positions
        if stop <= nb_positions:
            return [(start, stop)]
        start, length = start % nb_positions, stop - start
        if start + length <= nb_positions:
            return [(start, start + length)]
        return [(start, nb_positions), (0, start + length - nb_positions)]

    def _cut(self, k: int, size: int) -> int:
        """Where batch `k` begins in a part of `size` places; the last batch takes all that is left.

        At least one place is kept for the last batch, which makes the (``batch_size - 1``, 1) tail.
        """
        return size if k == self.nb_batches else min(k * self.batch_size, size - 1)


@dataclass(frozen=True)
class Stream:
    """The positions of ascending, disjoint `spans`, one after the other."""

    spans: tuple[Span, ...]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(stop - start for start, stop in self.spans))

    def __len__(self) -> int:
        return self._ends[-1] if self.spans else 0

    def positions(self, start: int, stop: int) -> list[Span]:
        """The spans of positions that lie at the places ``[start, stop)`` of the stream."""
        if len(self.spans) == 1:
            origin = self.spans[0][0]
            return [(origin + start, origin + stop)]
        found = []
        number = bisect_right(self._ends, start)
        while start < stop:
            end = self._ends[number]
            shift = self.spans[number][1] - end
            found.append((start + shift, min(stop, end) + shift))
            start = end
            number += 1
        return found


def complement(length: int, intervals: Iterable[Span]) -> list[Span]:
    """What of ``[0, length)`` no interval covers, ascending. Intervals may touch and overlap."""
    gaps, end = [], 0
    for start, stop in sorted(intervals):
        if start > end:
            gaps.append((end, start))
        end = max(end, stop)
    if end < length:
        gaps.append((end, length))
    return gaps


def joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The same positions in as few spans as possible. Needs ascending, disjoint spans."""
    result: list[Span] = []
    for start, stop in spans:
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], stop)
        else:
            result.append((start, stop))
    return tuple(result)
