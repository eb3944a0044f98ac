"""Who gets what: consumers own contiguous parts of a stream, and cut them into batches.

The *stream* is what is dealt out: the positions of all spans, one after the other, numbered from 0.
Everything here is arithmetic on a few integers; nothing grows with the number of samples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal

Tail = Literal["balanced", "drop", "pad"]
Span = tuple[int, int]
"""A half-open interval ``(start, stop)`` of positions, or of places in the stream."""


@dataclass(frozen=True)
class Partition:
    """How `nb_positions` places of a stream fall into consumers' parts and batches.

    ``balanced``
        Every place is dealt out exactly once, parts differ by one place at most, no batch is longer
        than `batch_size`, and all consumers make the same number of batches wherever there are
        places enough for that. Only the last batch of a part is short. The exception: where the
        last batches have fewer places than there are consumers, a consumer without one keeps back
        one of its last full batch, and ends in batches of ``batch_size - 1`` and 1.
        Batches of one place can't be split so, nor can there be a batch for everybody where there
        are fewer places than consumers (at the end of an interrupted epoch): there, some consumers
        make one batch less.
    ``drop``
        Full batches only, equally many: the end of each part is left out, there may be none.
    ``pad``
        Every part has ``ceil(nb_positions / nb_consumer)`` places; the last ones are repeated from
        the beginning of the stream. A last batch may be short, equally for all. What is repeated
        is the end of all last batches, one consumer's after the other: whoever puts the last
        batches together has each place once after cutting off `nb_repeated` of them.
    """

    nb_positions: int
    nb_consumer: int
    batch_size: int
    tail: Tail

    def nb_batches(self, consumer: int) -> int:
        """Batches of a consumer; consumer 0 has the most."""
        return self._part(consumer)[2]

    def _part(self, consumer: int) -> tuple[int, int, int]:
        """Where a consumer's part begins, its places, and its batches; worked out once."""
        found = self._parts.get(consumer)
        if found is None:
            found = self._parts[consumer] = self._work_out(consumer)
        return found

    @cached_property
    def _parts(self) -> dict[int, tuple[int, int, int]]:
        return {}

    def _work_out(self, consumer: int) -> tuple[int, int, int]:
        smallest, longer = divmod(self.nb_positions, self.nb_consumer)
        largest = smallest + (longer > 0)
        nb_batches = -(-largest // self.batch_size)
        if self.tail == "pad":
            return consumer * largest, largest, nb_batches
        begin, size = consumer * smallest + min(consumer, longer), smallest + (consumer < longer)
        if self.tail == "drop":
            nb_batches = smallest // self.batch_size
            return begin, nb_batches * self.batch_size, nb_batches
        return begin, size, min(nb_batches, size)  # no more batches than there are places

    @property
    def nb_repeated(self) -> int:
        """Places that ``pad`` deals out a second time."""
        return -self.nb_positions % self.nb_consumer if self.tail == "pad" else 0

    def segments(self, consumer: int, first: int, last: int) -> list[Span]:
        """Stream intervals of the batches ``[first, last)`` of a consumer, in the order dealt out.

        One interval, or two where places are repeated; none when ``first == last``. Needs
        ``0 <= consumer < nb_consumer`` and ``0 <= first <= last <= nb_batches(consumer)``.
        """
        part, size, nb_batches = self._part(consumer)
        start, stop = self._cut(first, size, nb_batches), self._cut(last, size, nb_batches)
        if start == stop:
            return []
        before, own = self._repeated(consumer)
        part -= before
        if stop <= size - own:
            return [(part + start, part + stop)]
        again = before % self.nb_positions  # a part of one place may be repeated many times
        repeated = again, again + own
        if start == size - own:
            return [repeated]
        return [(part + start, part + size - own), repeated]

    def _repeated(self, consumer: int) -> tuple[int, int]:
        """Repeated places in the last batches of the consumers before, and in this one's own."""
        if not self.nb_repeated:
            return 0, 0
        _, size, nb_batches = self._part(consumer)
        short = size - self._cut(nb_batches - 1, size, nb_batches)  # the last batch, of all alike
        before = max(0, self.nb_repeated - (self.nb_consumer - consumer) * short)
        after = max(0, self.nb_repeated - (self.nb_consumer - consumer - 1) * short)
        return before, after - before

    def dealt(self, delivered: Sequence[int]) -> list[Span]:
        """Stream intervals of the first ``delivered[c]`` batches of each consumer `c`."""
        return [
            interval
            for consumer, count in enumerate(delivered)
            for interval in self.segments(consumer, 0, count)
        ]

    def _cut(self, k: int, size: int, nb_batches: int) -> int:
        """Where batch `k` begins in a part of `size` places; the last batch takes all that is left.

        At least one place is kept for the last batch, which makes the (``batch_size - 1``, 1) tail.
        """
        return size if k >= nb_batches else min(k * self.batch_size, size - 1)


class PartitionBySteps(Partition):
    """The same parts and batches, of other places: a step of all consumers is one stretch.

    So all consumers together go through the stream from its beginning to its end, and what they
    have had after some steps is its first places. Within a step, consumer 0's batch comes first.
    """

    def segments(self, consumer: int, first: int, last: int) -> list[Span]:
        """See `Partition.segments`; here an interval for each batch, but where these touch."""
        found = self._full_segments(consumer, first, min(last, self._nb_full))
        for k in range(max(first, self._nb_full), last):
            for start, stop in self._segment(consumer, k):
                if found and found[-1][1] == start:
                    found[-1] = found[-1][0], stop
                else:
                    found.append((start, stop))
        return found

    def dealt(self, delivered: Sequence[int]) -> list[Span]:
        """See `Partition.dealt`; in time and memory proportional to what some are ahead by."""
        common = min(delivered)
        found = self._within(0, self.step_start(common))
        for consumer, count in enumerate(delivered):
            found += self.segments(consumer, common, count)
        return found

    def step_start(self, k: int) -> int:
        """How many places lie in the steps before step `k`."""
        return sum(self._before(consumers, k) for consumers in self._alike)

    @cached_property
    def _nb_full(self) -> int:
        """Steps in whose beginning all consumers have full batches; all but the last one or two."""
        parts = [self._part(consumers[0]) for consumers in self._alike if len(range(*consumers))]
        return max(0, min((size - 1) // self.batch_size for _, size, _ in parts))

    def _full_segments(self, consumer: int, first: int, last: int) -> list[Span]:
        """Those of steps before `_nb_full`; a walk through steps would cost more than the rest."""
        size, step = self.batch_size, self.batch_size * self.nb_consumer
        if first >= last:
            return []
        if self.nb_consumer == 1:
            return [(first * size, last * size)]
        own = consumer * size
        return [(at + own, at + own + size) for at in range(first * step, last * step, step)]

    def _segment(self, consumer: int, k: int) -> list[Span]:
        start = self.step_start(k)
        for first, last in self._alike:
            others = first, min(last, max(first, consumer))
            start += self._before(others, k + 1) - self._before(others, k)
        own = consumer, consumer + 1
        return self._within(start, start + self._before(own, k + 1) - self._before(own, k))

    def _within(self, start: int, stop: int) -> list[Span]:
        if start == stop:
            return []
        nb_positions = self.nb_positions
        if stop <= nb_positions:
            return [(start, stop)]
        start, stop = start % nb_positions, start % nb_positions + stop - start
        if stop <= nb_positions:
            return [(start, stop)]
        return [(start, nb_positions), (0, stop - nb_positions)]

    @cached_property
    def _alike(self) -> list[Span]:
        """Consumers whose parts have the same size."""
        longer = 0 if self.tail != "balanced" else self.nb_positions % self.nb_consumer
        return [(0, longer), (longer, self.nb_consumer)]

    def _before(self, consumers: Span, k: int) -> int:
        """Places of these consumers, which are alike, in the steps before `k`."""
        first, last = consumers
        if first >= last:
            return 0
        _, size, nb_batches = self._part(first)
        return (last - first) * self._cut(k, size, nb_batches)


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


def ascend(spans: Iterable[Span]) -> bool:
    """Whether each begins where the one before has ended, or later."""
    return all(a[1] <= b[0] for a, b in pairwise(spans))


def joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The same positions in as few spans as possible. Needs ascending, disjoint spans."""
    result: list[Span] = []
    for start, stop in spans:
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], stop)
        else:
            result.append((start, stop))
    return tuple(result)
