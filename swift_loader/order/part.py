"""Batch numbers, and what a consumer takes of an epoch. Pure.

A number is all that a worker is told to make. A part is a range of numbers, and `Taken` says which
of them the training loop has had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["MAX_EPOCH", "UNKNOWN", "EpochPart", "Number", "ShardsOver", "Taken"]

MAX_EPOCH = 2**62  # messages count in 64 bits
UNKNOWN = 2**62  # the count of a part that nobody can tell before its end


class Number(NamedTuple):
    """A batch number: batch `k` of epoch `epoch`, under the plan with this id."""

    plan_id: int
    epoch: int
    k: int


@dataclass(frozen=True, slots=True)
class EpochPart:
    """What this consumer takes of an epoch: batches `first` to `count`, less those `done`."""

    plan_id: int
    epoch: int
    count: int
    first: int = 0
    done: frozenset[int] = frozenset()  # delivered out of order before a resume
    expected: int | None = None  # batches of the whole epoch that a sampler says it has

    def numbers(self) -> Iterator[Number]:
        for k in range(self.first, self.count):
            if k not in self.done:
                yield Number(self.plan_id, self.epoch, k)

    def first_of(self, worker: int, workers: int) -> int:
        """The first number of a worker's shard still to come, of `workers`."""
        k = self.first + (worker - self.first) % workers
        while k in self.done:
            k += workers
        return k

    @property
    def size(self) -> int:
        """Batches of the part; `TypeError` where nobody can tell before its end."""
        if self.count != UNKNOWN:
            return len(self)
        if self.expected is None:
            raise TypeError("an epoch of a stream, or of a sampler without a length, has none")
        return max(0, self._left_of(self.expected))

    def __len__(self) -> int:
        return self._left_of(self.count)

    def _left_of(self, count: int) -> int:
        return count - self.first - sum(1 for k in self.done if k >= self.first)

    def __contains__(self, number: Number) -> bool:
        return (
            number.plan_id == self.plan_id
            and number.epoch == self.epoch
            and self.first <= number.k < self.count
            and number.k not in self.done
        )


@dataclass(frozen=True, slots=True)
class ShardsOver:
    """Shards of a stream that have ended in an epoch: the first `k` of each that never comes."""

    nb_shards: int
    first: Mapping[int, int]

    def __contains__(self, k: int) -> bool:
        first = self.first.get(k % self.nb_shards)
        return first is not None and k >= first


class Taken:
    """Which batches of `part` were taken: all below `first`, and those of `beyond` above it.

    `shards`: by worker, where its shard of a stream stood after the last of them, if it can tell.
    """

    def __init__(self, part: EpochPart) -> None:
        self.part = part
        self.shards: dict[int, bytes] = {}
        self.first = part.first
        self.beyond = set(part.done)
        self.left = len(part)
        self._advance()

    def add(self, k: int) -> None:
        """Batch `k` was taken too."""
        self.left -= 1
        if k == self.first:
            self.first += 1
            if self.beyond:  # empty where batches are taken in order: it saves a call for each
                self._advance()
        else:
            self.beyond.add(k)

    def pass_over(self, over: ShardsOver) -> None:
        """What never comes is not waited for: else `beyond` grows from a shard's end on."""
        while self.beyond and (self.first in self.beyond or self.first in over):
            self.beyond.discard(self.first)
            self.first += 1

    def _advance(self) -> None:
        while self.first in self.beyond:
            self.beyond.discard(self.first)
            self.first += 1
