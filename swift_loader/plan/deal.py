"""Whole batches, and parts of batches, dealt to consumers in equally many steps. Pure.

Consumers own contiguous parts of what is dealt out, as in `swift_loader.plan.partition`. Where the
batches don't divide, a consumer with one less makes two steps of one of its batches, the last one
that has two samples. A consumer that has none such takes steps over from its neighbours: the
largest batches of all are cut for that. So nothing comes twice, and no batch grows.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .partition import Span, Stream, complement, joined

__all__ = ["Deal", "Part"]

_AT_ONCE = 2**16  # batches whose sizes are looked up together
_NEAR = 1024  # a consumer looks at about twice as many batches of its own


class Part(NamedTuple):
    """Samples ``[start, stop)`` of the batch at a position of the epoch."""

    position: int
    start: int
    stop: int


class _Cut(NamedTuple):
    """An item of which several steps are made, and the first of these."""

    step: int
    item: int
    pieces: int


@dataclass(frozen=True)
class Deal:
    """What is left of an epoch's batches, and among how many consumers it is dealt out.

    `spans`: positions of whole batches. `parts`: of others. Both are its *items*. `sizes`: samples
    of the batches at the positions ``[start, stop)``. `single`: all batches are known to have one.
    """

    spans: tuple[Span, ...]
    parts: tuple[Part, ...]
    nb_consumer: int
    sizes: Callable[[int, int], NDArray[np.int64]]
    single: bool = False

    def nb_steps(self, consumer: int) -> int:
        """Equal for all consumers, unless there are not samples enough."""
        return self._share(consumer, self._nb_steps)[1]

    def part(self, consumer: int, step: int) -> Part:
        """What a consumer gets in a step."""
        step += self._share(consumer, self._nb_steps)[0]
        cut = self._cut_at(step)
        behind = step - cut.step - cut.pieces
        if behind < 0:
            return _piece(self._item(cut.item), behind + cut.pieces, cut.pieces)
        return self._item(cut.item + 1 + behind)

    @property
    def takes_over(self) -> bool:
        """Whether a consumer that is short of a step finds no batch of its own to cut for it."""
        return self._cutting[1]

    def without(self, taken: Iterable[tuple[int, int, Collection[int]]]) -> Deal:
        """What is left where ``(consumer, steps, steps beyond)`` were taken of these."""
        left: list[Span] = []  # of items
        parts: list[Part] = []
        for consumer, steps, beyond in taken:
            first, count = self._share(consumer, self._nb_steps)
            done = [(0, steps), *((step, step + 1) for step in beyond)]
            for start, stop in complement(count, done):
                self._collect(first + start, first + stop, left, parts)
        whole = len(self._stream)
        spans = []
        for start, stop in joined(sorted(left)):
            spans += self._stream.positions(start, min(stop, whole)) if start < whole else []
            parts += self.parts[max(0, start - whole) : max(0, stop - whole)]
        whole_again, parts = self._merged(parts)
        spans += [(position, position + 1) for position in whole_again]
        return replace(self, spans=joined(sorted(spans)), parts=tuple(parts))

    def among(self, nb_consumer: int) -> Deal:
        """The same, dealt out among others."""
        return replace(self, nb_consumer=nb_consumer)

    @cached_property
    def _stream(self) -> Stream:
        return Stream(self.spans)

    @cached_property
    def _nb_items(self) -> int:
        return len(self._stream) + len(self.parts)

    @cached_property
    def _nb_steps(self) -> int:
        """Of all consumers together."""
        return self._nb_items + sum(pieces - 1 for pieces in self._cutting[0].values())

    def _share(self, consumer: int, count: int) -> tuple[int, int]:
        """The first of a consumer's, of so many items or steps; and how many it has."""
        smallest, longer = divmod(count, self.nb_consumer)
        return consumer * smallest + min(consumer, longer), smallest + (consumer < longer)

    @cached_property
    def _cutting(self) -> tuple[dict[int, int], bool]:
        """How many pieces are made of the items that are cut; see also `takes_over`."""
        missing = -self._nb_items % self.nb_consumer
        pieces: dict[int, int] = {}
        if self.single:
            return pieces, missing > 0
        for consumer in range(self.nb_consumer - missing, self.nb_consumer):
            own = self._last_of_several(*self._share(consumer, self._nb_items))
            if own is not None:
                pieces[own] = 2
        still_missing = missing - len(pieces)
        if still_missing:
            self._cut_largest(pieces, still_missing)
        return pieces, still_missing > 0

    def _last_of_several(self, first: int, count: int) -> int | None:
        """Among so many items, the last one that has more than one sample; only near the end."""
        stop, width = first + count, 1  # most often the last one has
        while stop > first and width <= _NEAR:
            start = max(first, stop - width)
            several = np.flatnonzero(self._item_sizes(start, stop) > 1)
            if len(several):
                return start + int(several[-1])
            stop, width = start, 2 * width
        return None

    def _cut_largest(self, pieces: dict[int, int], wanted: int) -> None:
        """Make so many pieces more, always of the item whose pieces are the largest."""
        waiting = heapq.nsmallest(wanted, self._to_be_cut(pieces))
        for _ in range(wanted):
            if not waiting:
                return
            _, item, size = heapq.heappop(waiting)
            count = pieces[item] = pieces.get(item, 1) + 1
            if count < size:
                heapq.heappush(waiting, (count / size, item, size))

    def _to_be_cut(self, pieces: Mapping[int, int]) -> Iterator[tuple[float, int, int]]:
        """The items that can be cut further: pieces for each sample, the item, and its samples."""
        for start in range(0, self._nb_items, _AT_ONCE):
            sizes = self._item_sizes(start, min(start + _AT_ONCE, self._nb_items))
            for at in np.flatnonzero(sizes > 1).tolist():
                item, size = start + at, int(sizes[at])
                if pieces.get(item, 1) < size:
                    yield pieces.get(item, 1) / size, item, size

    def _item_sizes(self, start: int, stop: int) -> NDArray[np.int64]:
        whole = len(self._stream)
        parts = self.parts[max(0, start - whole) : max(0, stop - whole)]
        spans = self._stream.positions(start, min(stop, whole)) if start < whole else []
        of_parts = np.array([part.stop - part.start for part in parts], np.int64)
        return np.concatenate([*(self.sizes(*span) for span in spans), of_parts])

    @cached_property
    def _cuts(self) -> list[_Cut]:
        """Ascending. Before all is one of nothing."""
        cuts, more = [_Cut(0, -1, 0)], 0
        for item, pieces in sorted(self._cutting[0].items()):
            cuts.append(_Cut(item + more, item, pieces))
            more += pieces - 1
        return cuts

    def _cut_at(self, step: int) -> _Cut:
        """The last one that begins at this step or before, counted over all consumers."""
        return self._cuts[bisect_right(self._cuts, step, key=_first_step) - 1]

    def _collect(self, start: int, stop: int, items: list[Span], parts: list[Part]) -> None:
        """Add what the steps ``[start, stop)`` of all are: whole items, and parts."""
        number = bisect_right(self._cuts, start, key=_first_step)
        while start < stop:
            cut = self._cuts[number - 1]
            end = min(stop, self._cuts[number].step) if number < len(self._cuts) else stop
            whole_from = max(start, min(end, cut.step + cut.pieces))
            for step in range(start, whole_from):
                parts.append(_piece(self._item(cut.item), step - cut.step, cut.pieces))
            if whole_from < end:
                first = cut.item + 1 + whole_from - cut.step - cut.pieces
                items.append((first, first + end - whole_from))
            start, number = end, number + 1

    def _item(self, number: int) -> Part:
        whole = len(self._stream)
        if number >= whole:
            return self.parts[number - whole]
        [(position, _)] = self._stream.positions(number, number + 1)
        return Part(position, 0, self._size(position))

    def _size(self, position: int) -> int:
        return int(self.sizes(position, position + 1)[0])

    def _merged(self, parts: Iterable[Part]) -> tuple[list[int], list[Part]]:
        """Positions of batches that all parts are there of, and the others, neighbours as one."""
        found: list[Part] = []
        for part in sorted(parts):
            last = found[-1] if found else None
            if last is not None and (last.position, last.stop) == (part.position, part.start):
                found[-1] = last._replace(stop=part.stop)
            else:
                found.append(part)
        whole, others = [], []
        for part in found:
            if part.stop - part.start == self._size(part.position):
                whole.append(part.position)
            else:
                others.append(part)
        return whole, others


def _first_step(cut: _Cut) -> int:
    return cut.step


def _piece(part: Part, number: int, pieces: int) -> Part:
    """One of so many, which are as large as can be alike; the larger ones first of two."""
    size = part.stop - part.start
    start, stop = (part.start - (-size * at // pieces) for at in (number, number + 1))
    return part._replace(start=start, stop=stop)
