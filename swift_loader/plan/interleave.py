"""Which of several sources stands at a position: evenly interleaved by weight. Pure.

The sources are the leaves of a binary tree. At each node, position ``x`` of those that pass through
it goes to the left where ``floor(r * x + phase)`` steps up, with ``r`` the left side's share of the
node's weight. So any stretch of positions holds at each node, to less than one, as many of each
side as the weights say, and how many of a source come before a position is a formula. The tree is
Huffman's (1952): a side has at most two thirds of the weight of an inner node below the root, so
that the small errors of several nodes hardly add up.

The phase is what a node owes. It is carried over where weights change, so that a source that is due
once in 10,000 positions comes, however often they change.

Integers only, beyond the division of two weights: the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CHUNK", "ONE", "Interleaver", "Shares", "Stretch"]

_BITS = 40
ONE = 1 << _BITS
"""Shares, phases and debts are in units of ``1 / ONE``."""
CHUNK = 1 << 20
"""Positions that are split at a time; ``CHUNK * ONE`` fits int64."""


class Shares(NamedTuple):
    """What is fixed between two changes of the weights, for each inner node."""

    ratios: tuple[int, ...]
    phases: tuple[int, ...]


class Stretch(NamedTuple):
    """The positions of one source among those that were asked for.

    `before`: how many of it come before the first of these. `where`: int64, ascending, counted from
    the first position that was asked for.
    """

    source: int
    before: int
    where: NDArray[np.int64]


class Interleaver:
    """The tree of so many sources. `means`: their weights, about; only the shape depends on it."""

    def __init__(self, means: Sequence[float]) -> None:
        nb_sources = self._nb_sources = len(means)
        self._sides: list[tuple[int, int]] = []  # of inner nodes, in the order of their making
        self._leaves: list[tuple[int, ...]] = [(leaf,) for leaf in range(nb_sources)]
        heap = [(mean, leaf) for leaf, mean in enumerate(means)]
        heapify(heap)
        while len(heap) > 1:
            (light, right), (heavy, left) = heappop(heap), heappop(heap)
            node = nb_sources + len(self._sides)
            self._sides.append((left, right))
            self._leaves.append(self._leaves[left] + self._leaves[right])
            heappush(heap, (light + heavy, node))

    def shares(self, weights: Sequence[float], debts: Sequence[int]) -> Shares:
        """Of sources that have these weights, and that so much is owed to."""
        ratios, phases = [], []
        for (left, right), node in zip(self._sides, self._leaves[self._nb_sources :], strict=True):
            ours = sum(weights[leaf] for leaf in self._leaves[left])
            others = sum(weights[leaf] for leaf in self._leaves[right])
            ratio = _ratio(ours, others)
            owed = sum(debts[leaf] for leaf in self._leaves[left])
            of_node = sum(debts[leaf] for leaf in node)
            phase = ONE // 2 + owed - (ratio * of_node >> _BITS)
            ratios.append(ratio)
            phases.append(min(max(phase, 0), ONE - 1))
        return Shares(tuple(ratios), tuple(phases))

    def counts(self, shares: Shares, position: int) -> list[int]:
        """How many of each source come before `position`."""
        return self._passed(shares, position)[: self._nb_sources]

    def counts_within(
        self, shares: Shares, start: int, spans: Sequence[tuple[int, int]]
    ) -> list[int]:
        """How many of each source stand in all `spans` together; position 0 is at `start` there.

        Needs ascending spans that lie within `CHUNK` positions.
        """
        origin = spans[0][0]
        firsts = [0] * len(self._leaves)  # of the positions that pass through a node
        firsts[-1] = origin - start
        near = [(first - origin, last - origin) for first, last in spans]
        bounds = {len(self._leaves) - 1: np.array(near, np.int64)}
        for inner in reversed(range(len(self._sides))):
            node = self._nb_sources + inner
            left, right = self._sides[inner]
            there = bounds.pop(node)
            before, rest = divmod(shares.ratios[inner] * firsts[node] + shares.phases[inner], ONE)
            to_left = (there * shares.ratios[inner] + rest) >> _BITS
            firsts[left], firsts[right] = before, firsts[node] - before
            bounds[left], bounds[right] = to_left, there - to_left
        return [
            int((bounds[leaf][:, 1] - bounds[leaf][:, 0]).sum()) for leaf in range(self._nb_sources)
        ]

    def goes_on(self, shares: Shares, position: int, weights: Sequence[float]) -> Shares:
        """With other weights from `position` on, which is counted from 0 then."""
        passed = self._passed(shares, position)[self._nb_sources :]
        phases = tuple(
            (ratio * x + phase) % ONE for ratio, phase, x in zip(*shares, passed, strict=True)
        )
        ratios = self.shares(weights, [0] * self._nb_sources).ratios
        return Shares(ratios, phases)

    def split(self, shares: Shares, first: int, last: int) -> Iterator[Stretch]:
        """The positions ``[first, last)`` by source; time and memory are proportional to them."""
        for start in range(first, last, CHUNK):
            stop = min(start + CHUNK, last)
            where = np.arange(start - first, stop - first, dtype=np.int64)
            yield from self._split(shares, len(self._leaves) - 1, start, where)

    def _split(
        self, shares: Shares, node: int, first: int, where: NDArray[np.int64]
    ) -> Iterator[Stretch]:
        while node >= self._nb_sources:
            inner = node - self._nb_sources
            ratio, phase = shares.ratios[inner], shares.phases[inner]
            left, right = self._sides[inner]
            before, rest = divmod(ratio * first + phase, ONE)
            count = len(where)
            steps = np.arange(count + 1, dtype=np.int64)
            steps *= ratio
            steps += rest
            steps >>= _BITS
            nb_left = int(steps[-1])
            if nb_left == count:
                node, first = left, before
            elif nb_left == 0:
                node, first = right, first - before
            else:
                to_left = steps[1:] != steps[:-1]
                yield from self._split(shares, left, before, where[to_left])
                node, first, where = right, first - before, where[~to_left]
        if len(where):
            yield Stretch(node, first, where)

    def _passed(self, shares: Shares, position: int) -> list[int]:
        """How many of the positions before `position` pass through each node, leaves first."""
        passed = [0] * len(self._leaves)
        passed[-1] = position
        for inner in reversed(range(len(self._sides))):
            x = passed[self._nb_sources + inner]
            if x:
                left, right = self._sides[inner]
                to_left = (shares.ratios[inner] * x + shares.phases[inner]) >> _BITS
                passed[left], passed[right] = to_left, x - to_left
        return passed


def _ratio(ours: float, others: float) -> int:
    if others <= 0:
        return ONE if ours > 0 else ONE // 2
    if ours <= 0:
        return 0
    return min(max(round(ours / (ours + others) * ONE), 1), ONE - 1)
