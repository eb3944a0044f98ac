"""A mixture of sources: which source, and which sample of it, stands at a position. Pure.

A run of a mixture is one long sequence of positions, all epochs behind one another. Who comes when
is `interleave`'s, by the weights; ``restarts`` (``exhausted="stop"`` and ``"drop"``) begins that
pattern anew with each epoch. A source's samples are numbered in the order in which they come, over
the whole run, and number `j` is one of the source's own round, which is a permutation of its own.
So counts of samples by source say all that was seen, whatever the weights were, and nothing of a
source comes again before the rest of it has come.

Weights are a table by step. Its changes fall on positions, since a step is so many positions of all
consumers together. Where a run goes on with other weights, sources or steps, a new `MixturePlan`
begins at that position with the counts of the old one; see `order.remix`.

Sample indices number all samples of all sources: those of the first source come first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .interleave import CHUNK, ONE, Interleaver, Shares
from .keys import key64
from .mixture_fields import Exhausted, Hole, Weights, wrong_field
from .partition import Span, ascend
from .rounds import Round, samples_of

__all__ = ["Exhausted", "Hole", "MixturePlan", "Piece", "Shuffling", "Weights"]


_SOURCE = 7  # purpose of keys; plan.py and shuffle.py have 1 to 6
_BLOCK = 512
"""Positions that are computed together: neighbouring batches share the cost."""
_BLOCKS_KEPT = 16


class Shuffling(NamedTuple):
    """How the rounds of sources are shuffled, as a `Plan` has it."""

    shuffle: bool
    window: int
    seed: int


class Piece(NamedTuple):
    """Positions from `start` on, with weights that don't change; `passed`: by source, before."""

    start: int
    weights: Weights
    shares: Shares
    passed: tuple[int, ...]


@dataclass(frozen=True)
class MixturePlan:
    """See the module's text. Everything by source is in the order of `names`.

    Parameters
    ----------
    names, lengths:
        The sources, and how many samples each has now.
    nb_positions:
        Of an epoch.
    table:
        Weights by step, from ascending steps on; the first holds from the beginning.
    step_positions, nb_steps:
        Positions of one step, of all consumers together, and steps of an epoch.
    batch_sizes:
        Samples that one position stands for: more than 1 where a position is a whole batch.
    exhausted:
        What happens when a source has no more: it begins anew, the epoch ends, or the others go on.
    first_epoch, first_position, first_step:
        Where this plan takes over.
    counts, debts:
        What has come of each source by then, in samples, and what is owed to it, in positions of
        ``1 / ONE``.
    limits:
        How many positions of each source there may be in an epoch; () is no limit.
    rounds:
        How each source's sample numbers fall into rounds.
    holes:
        Positions before `first_position` that nobody got: ``(position, source, sample number,
        samples)``.
    """

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    nb_positions: int
    table: tuple[tuple[int, Weights], ...]
    step_positions: int
    nb_steps: int
    batch_sizes: tuple[int, ...]
    exhausted: Exhausted
    first_epoch: int
    first_position: int
    first_step: int
    counts: tuple[int, ...]
    debts: tuple[int, ...]
    limits: tuple[int, ...]
    rounds: tuple[tuple[Round, ...], ...]
    holes: tuple[Hole, ...] = ()

    def __post_init__(self) -> None:
        wrong = wrong_field(self)
        if wrong:
            raise ConfigError(f"a mixture of {len(self.names)} sources can't have these {wrong}")

    def plain(self) -> dict[str, Any]:
        """Every field, for JSON."""
        return {field.name: _listed(getattr(self, field.name)) for field in fields(self)}

    def __getstate__(self) -> dict[str, Any]:
        """Without what is worked out again in no time."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    # ---- what stands where

    def indices(self, epoch: int, first: int, last: int, shuffling: Shuffling) -> NDArray[np.int64]:
        """Sample indices at the positions ``[first, last)`` of an epoch: a new int64 array.

        Its shape is ``(last - first,)``, or ``(samples of these positions,)`` where a position is
        a batch. Time and memory: proportional to that, plus 512 positions.
        """
        if first < self.first_position:
            return self._of_holes(epoch, first, last, shuffling)
        wide = max(last - first, self.step_positions) >= _BLOCK
        if wide or self._by_batch:
            return self._computed(epoch, first, last, shuffling)
        pieces = []
        while first < last:
            start = first - first % _BLOCK
            stop = min(start + _BLOCK, self.nb_positions)
            start = max(start, self.first_position)
            block = self._block(epoch, start, stop, shuffling)
            pieces.append(block[first - start : last - start])
            first = stop
        return pieces[0].copy() if len(pieces) == 1 else np.concatenate(pieces)

    def counts_at(self, epoch: int, position: int) -> tuple[int, ...]:
        """Samples of each source that come before `position` of `epoch`, in the whole run."""
        begun, passed = self._begun(epoch), self._passed(self._place(epoch, position))
        return tuple(
            before + size * count
            for before, size, count in zip(begun, self.batch_sizes, passed, strict=True)
        )

    def debts_at(self, epoch: int, position: int) -> tuple[int, ...]:
        """What is owed to each source there, in positions of ``1 / ONE``."""
        place = self._place(epoch, position)
        owed = list(self.debts)
        pieces = self._pieces
        ends = [*(piece.start for piece in pieces[1:]), place]
        for piece, end in zip(pieces, ends, strict=True):
            length = min(end, place) - piece.start
            if length <= 0:
                break
            total = sum(piece.weights)
            for source, weight in enumerate(piece.weights if total else ()):
                owed[source] += round(weight / total * ONE) * length
        return tuple(
            owes - count * ONE for owes, count in zip(owed, self._passed(place), strict=True)
        )

    def samples_by_source(self, epoch: int, spans: Sequence[Span]) -> list[int]:
        """How many samples of each source the positions of `spans` hold."""
        found = [0] * len(self.names)
        begin = self.first_position
        if min(spans)[0] < begin:
            for position, source, _, size in self.holes:
                if any(first <= position < last for first, last in spans):
                    found[source] += size
            spans = [(max(first, begin), last) for first, last in spans if last > begin]
        shift = self._place(epoch, 0)
        counts = self._within([(first + shift, last + shift) for first, last in spans])
        return [
            before + size * count
            for before, size, count in zip(found, self.batch_sizes, counts, strict=True)
        ]

    def located(self, epoch: int, first: int, last: int) -> Iterator[Hole]:
        """What stands at the positions ``[first, last)``, ascending, as `holes` have it."""
        yield from (hole for hole in self.holes if first <= hole[0] < last)
        first = max(first, self.first_position)
        if first >= last:
            return
        found: list[Hole] = []
        for source, before, where in self._split(epoch, first, last):
            size = self.batch_sizes[source]
            found += (
                (first + place, source, before + size * number, size)
                for number, place in enumerate(where.tolist())
            )
        yield from sorted(found)

    @cached_property
    def _by_batch(self) -> bool:
        return max(self.batch_sizes) > 1

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where the sample indices of each source begin; behind them, how many there are."""
        return tuple(accumulate(self.lengths, initial=0))

    @cached_property
    def weights_now(self) -> Weights:
        """Those at the step where this plan takes over."""
        return self._table_from_now[0][1]

    # ---- the run as one sequence

    @property
    def restarts(self) -> bool:
        return self.exhausted != "repeat"

    @property
    def _span(self) -> int:
        """Positions of an epoch that are this plan's."""
        return self.nb_positions - self.first_position

    def _place(self, epoch: int, position: int) -> int:
        """How far behind the beginning of this plan, or of its pattern."""
        place = position - self.first_position
        return place if self.restarts else place + (epoch - self.first_epoch) * self._span

    def _begun(self, epoch: int) -> Sequence[int]:
        """Samples of each source before the first place that `_place` counts from."""
        if not self.restarts or epoch == self.first_epoch:
            return self.counts
        of_epoch = self._passed(self._span)
        return [
            before + (epoch - self.first_epoch) * size * count
            for before, size, count in zip(self.counts, self.batch_sizes, of_epoch, strict=True)
        ]

    @cached_property
    def _table_from_now(self) -> list[tuple[int, Weights]]:
        """The table, its places counted in positions of this plan."""
        steps = [step for step, _ in self.table]
        now = max(0, bisect_right(steps, self.first_step) - 1)
        found = [(0, self.table[now][1])]
        for step, weights in self.table[now + 1 :]:
            epochs, left = divmod(step - self.first_step, max(1, self.nb_steps))
            place = epochs * self._span + min(left * self.step_positions, self._span)
            if place == found[-1][0]:
                found.pop()
            found.append((place, weights))
        return found

    @cached_property
    def _tree(self) -> Interleaver:
        table = self._table_from_now
        return Interleaver([sum(column) for column in zip(*(w for _, w in table), strict=True)])

    @cached_property
    def _pieces(self) -> list[Piece]:
        table, tree = self._table_from_now, self._tree
        none = (0,) * len(self.names)
        weights = table[0][1]
        pieces = [Piece(0, weights, tree.shares(weights, self.debts), none)]
        if self.limits:
            self._drop_exhausted(pieces)
        for start, weights in table[1:]:
            pieces.append(self._following(pieces[-1], start, weights))
        return pieces

    def _following(self, piece: Piece, start: int, weights: Weights) -> Piece:
        tree, length = self._tree, start - piece.start
        counts = tree.counts(piece.shares, length)
        passed = tuple(a + b for a, b in zip(piece.passed, counts, strict=True))
        return Piece(start, weights, tree.goes_on(piece.shares, length, weights), passed)

    def _drop_exhausted(self, pieces: list[Piece]) -> None:
        """A piece more each time that a source has no more."""
        while True:
            piece = pieces[-1]
            left = [limit - count for limit, count in zip(self.limits, piece.passed, strict=True)]
            weights = tuple(
                weight if rest > 0 or self.exhausted == "stop" else 0.0
                for weight, rest in zip(piece.weights, left, strict=True)
            )
            if not any(weights):
                return
            if weights != piece.weights:
                pieces.append(self._following(piece, piece.start, weights))
                if pieces[-1].start == pieces[-2].start:
                    del pieces[-2]
                continue
            length = self._until_exhausted(piece.shares, left)
            after = self._following(piece, piece.start + length, weights)
            dropped = tuple(
                0.0 if count >= limit else weight
                for weight, count, limit in zip(weights, after.passed, self.limits, strict=True)
            )
            if self.exhausted == "stop" or not any(dropped):
                pieces.append(after._replace(weights=dropped))
                return
            pieces.append(self._following(piece, after.start, dropped))

    def _until_exhausted(self, shares: Shares, left: Sequence[int]) -> int:
        """The most positions that hold no more of any source than is `left`."""
        low, high = 0, sum(left) + 1
        while high - low > 1:
            middle = (low + high) // 2
            counts = self._tree.counts(shares, middle)
            if all(count <= rest for count, rest in zip(counts, left, strict=True)):
                low = middle
            else:
                high = middle
        return low

    @cached_property
    def nb_until_exhausted(self) -> int:
        """Positions until the epoch ends by itself: of ``"stop"`` and ``"drop"``."""
        return self._pieces[-1].start if len(self._pieces) > 1 else 0

    @cached_property
    def _starts(self) -> list[int]:
        return [piece.start for piece in self._pieces]

    def _piece(self, place: int) -> int:
        return max(0, bisect_right(self._starts, place) - 1)

    def _passed(self, place: int) -> list[int]:
        """Positions of each source before `place`."""
        piece = self._pieces[self._piece(place)]
        counts = self._tree.counts(piece.shares, place - piece.start)
        return [a + b for a, b in zip(piece.passed, counts, strict=True)]

    def _within(self, places: Sequence[Span]) -> Sequence[int]:
        """Positions of each source at these places."""
        if not places:
            return [0] * len(self.names)
        first, last = places[0][0], places[-1][1]
        piece = self._pieces[self._piece(first)]
        are_near = last - first <= CHUNK and piece is self._pieces[self._piece(last)]
        if len(places) > 2 and are_near and ascend(places):
            return self._tree.counts_within(piece.shares, piece.start, places)
        between = ((self._passed(first), self._passed(last)) for first, last in places)
        counts = [[b - a for a, b in zip(*passed, strict=True)] for passed in between]
        return [sum(column) for column in zip(*counts, strict=True)]

    # ---- arrays

    def _split(
        self, epoch: int, first: int, last: int
    ) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
        """``(source, its sample number before, which of the positions)``, piece by piece."""
        begun = self._begun(epoch)
        place, end = self._place(epoch, first), self._place(epoch, last)
        origin, number = place, self._piece(place)
        while place < end:
            piece = self._pieces[number]
            number += 1
            stop = end if number == len(self._pieces) else min(end, self._starts[number])
            for source, before, where in self._tree.split(
                piece.shares, place - piece.start, stop - piece.start
            ):
                before += piece.passed[source]
                where += place - origin
                yield source, begun[source] + self.batch_sizes[source] * before, where
            place = stop

    def _computed(
        self, epoch: int, first: int, last: int, shuffling: Shuffling
    ) -> NDArray[np.int64]:
        if not self._by_batch:
            indices = np.empty(last - first, np.int64)
            for source, before, where in self._split(epoch, first, last):
                indices[where] = self._samples(source, before, len(where), shuffling)
            return indices
        batches: list[Any] = [None] * (last - first)
        for source, before, where in self._split(epoch, first, last):
            size = self.batch_sizes[source]
            found = self._samples(source, before, size * len(where), shuffling)
            for number, place in enumerate(where.tolist()):
                batches[place] = found[size * number : size * (number + 1)]
        return np.concatenate(batches) if len(batches) > 1 else batches[0]

    def _of_holes(
        self, epoch: int, first: int, last: int, shuffling: Shuffling
    ) -> NDArray[np.int64]:
        found = [
            self._samples(source, number, size, shuffling)
            for position, source, number, size in self.holes
            if first <= position < last
        ]
        if last > self.first_position:
            found.append(self.indices(epoch, self.first_position, last, shuffling))
        return np.concatenate(found)

    def _block(self, epoch: int, start: int, stop: int, shuffling: Shuffling) -> NDArray[np.int64]:
        key = (epoch, start, shuffling)
        block = self._blocks.get(key)
        if block is None:
            block = self._computed(epoch, start, stop, shuffling)
            while len(self._blocks) >= _BLOCKS_KEPT:
                self._blocks.pop(next(iter(self._blocks)), None)
            self._blocks[key] = block
        return block

    @cached_property
    def _blocks(self) -> dict[tuple[int, int, Shuffling], NDArray[np.int64]]:
        return {}

    def _samples(
        self, source: int, number: int, count: int, shuffling: Shuffling
    ) -> NDArray[np.int64]:
        """Sample indices of the sample numbers ``[number, number + count)`` of a source."""
        seed = self._seeds(shuffling.seed)[source] if shuffling.shuffle else None
        indices = samples_of(self.rounds[source], number, count, shuffling.window, seed)
        indices += self.offsets[source]
        return indices

    def _seeds(self, seed: int) -> tuple[int, ...]:
        """A source's own, by its name: it stays as it is when others come and go."""
        found = self._seeds_kept.get(seed)
        if found is None:
            keys = (
                int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
                for name in self.names
            )
            found = self._seeds_kept[seed] = tuple(key64(_SOURCE, seed, key) for key in keys)
        return found

    @cached_property
    def _seeds_kept(self) -> dict[int, tuple[int, ...]]:
        return {}


def _listed(value: Any) -> Any:
    return [_listed(one) for one in value] if isinstance(value, tuple) else value
