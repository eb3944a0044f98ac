"""Whole batches, and parts of batches, dealt to consumers in equally many steps. Pure.

Consumers own contiguous parts of what is dealt out, as in `swift_loader.plan.partition`. Where the
batches don't divide, a consumer with one less makes two steps of one of its batches, the last one
that has two samples. So nothing comes twice, and no batch grows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .partition import Span, Stream, complement, joined

__all__ = ["Deal", "Part"]


class Part(NamedTuple):
    """Samples ``[start, stop)`` of the batch at a position of the epoch."""

    position: int
    start: int
    stop: int


@dataclass(frozen=True)
class Deal:
    """What is left of an epoch's batches, and among how many consumers it is dealt out.

    `spans`: positions of whole batches. `parts`: of others. `size`: samples of the batch at a
    position.
    """

    spans: tuple[Span, ...]
    parts: tuple[Part, ...]
    nb_consumer: int
    size: Callable[[int], int]

    def nb_steps(self, consumer: int) -> int:
        """Equal for all consumers, unless there are not samples enough to split."""
        _, count = self._share(consumer)
        return count + (self._split_of(consumer) is not None)

    def part(self, consumer: int, step: int) -> Part:
        """What a consumer gets in a step."""
        first, _ = self._share(consumer)
        split = self._split_of(consumer)
        if split is None or step < split:
            return self._item(first + step)
        if step > split + 1:
            return self._item(first + step - 1)
        return _halves(self._item(first + split))[step - split]

    def without(self, taken: Iterable[tuple[int, int, Collection[int]]]) -> Deal:
        """What is left where ``(consumer, steps, steps beyond)`` were taken of these."""
        left: list[Span] = []  # of items
        parts: list[Part] = []
        for consumer, steps, beyond in taken:
            first, _ = self._share(consumer)
            split = self._split_of(consumer)
            done = [(0, steps), *((step, step + 1) for step in beyond)]
            rest = complement(self.nb_steps(consumer), done)
            if split is None:
                left += [(first + start, first + stop) for start, stop in rest]
                continue
            halves = [step for step in (split, split + 1) if _within(step, rest)]
            if len(halves) == 1:
                parts.append(_halves(self._item(first + split))[halves[0] - split])
            for start, stop in rest:
                left += _cut(first, start, min(stop, split))
                left += _cut(first - 1, max(start, split + 2), stop)
            if len(halves) == 2:
                left.append((first + split, first + split + 1))
        whole = len(self._stream)
        spans = []
        for start, stop in joined(sorted(left)):
            spans += self._stream.positions(start, min(stop, whole)) if start < whole else []
            parts += self._pieces[max(0, start - whole) : max(0, stop - whole)]
        whole_again, parts = _merged(parts, self.size)
        spans += [(position, position + 1) for position in whole_again]
        return Deal(joined(sorted(spans)), tuple(parts), self.nb_consumer, self.size)

    def among(self, nb_consumer: int) -> Deal:
        """The same, dealt out among others."""
        return Deal(self.spans, self.parts, nb_consumer, self.size)

    @cached_property
    def _stream(self) -> Stream:
        return Stream(() if self._is_cut else self.spans)

    @cached_property
    def _is_cut(self) -> bool:
        """Whether there is less than one item a consumer."""
        nb_whole = sum(stop - start for start, stop in self.spans)
        return nb_whole + len(self.parts) < self.nb_consumer

    @cached_property
    def _pieces(self) -> tuple[Part, ...]:
        """The parts; and where there is less than one item a consumer, all, cut to be as many."""
        if not self._is_cut:
            return self.parts
        whole = [position for span in self.spans for position in range(*span)]
        items = [Part(position, 0, self.size(position)) for position in whole]
        items += self.parts
        while items and len(items) < self.nb_consumer:
            largest = max(items, key=_length)
            if _length(largest) < 2:
                break
            items.remove(largest)
            items += _halves(largest)
        return tuple(sorted(items))

    def _share(self, consumer: int) -> tuple[int, int]:
        """The first item of a consumer, and how many it has."""
        smallest, longer = divmod(len(self._stream) + len(self._pieces), self.nb_consumer)
        return consumer * smallest + min(consumer, longer), smallest + (consumer < longer)

    def _split_of(self, consumer: int) -> int | None:
        """Which item of its own a consumer makes two steps of."""
        if consumer not in self._splits:
            first, count = self._share(consumer)
            short = count < self._share(0)[1]
            self._splits[consumer] = next(
                (at for at in reversed(range(count)) if _length(self._item(first + at)) > 1)
                if short
                else iter(()),
                None,
            )
        return self._splits[consumer]

    @cached_property
    def _splits(self) -> dict[int, int | None]:
        return {}

    def _item(self, number: int) -> Part:
        whole = len(self._stream)
        if number >= whole:
            return self._pieces[number - whole]
        [(position, _)] = self._stream.positions(number, number + 1)
        return Part(position, 0, self.size(position))


def _length(part: Part) -> int:
    return part.stop - part.start


def _halves(part: Part) -> tuple[Part, Part]:
    middle = (part.start + part.stop + 1) // 2
    return part._replace(stop=middle), part._replace(start=middle)


def _merged(parts: Iterable[Part], size: Callable[[int], int]) -> tuple[list[int], list[Part]]:
    """Positions of batches that all parts are there of, and the others, neighbours as one."""
    found: list[Part] = []
    for part in sorted(parts):
        last = found[-1] if found else None
        if last is not None and (last.position, last.stop) == (part.position, part.start):
            found[-1] = last._replace(stop=part.stop)
        else:
            found.append(part)
    whole = [part for part in found if _length(part) == size(part.position)]
    return [part.position for part in whole], [part for part in found if part not in whole]


def _within(step: int, spans: Iterable[Span]) -> bool:
    return any(start <= step < stop for start, stop in spans)


def _cut(offset: int, start: int, stop: int) -> list[Span]:
    return [(offset + start, offset + stop)] if start < stop else []
