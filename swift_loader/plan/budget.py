"""Batches bounded by tokens: samples of similar lengths, as many as the budget has room for. Pure.

The samples are sorted by length, the longest first, and cut into batches, once: which lengths make
a batch is the same in every epoch, and so is the number of batches. An epoch has an order of its
own of the batches, and exchanges samples of the same length with one another. Both are keyed
permutations, so a batch is found without the ones before it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .keys import key64
from .shuffle import bijection, shuffled

__all__ = ["BudgetTable", "Cost"]

Cost = Literal["padded", "sum"]
_EXCHANGE, _BATCHES = 24, 25  # purposes of keys
_DIGEST_STEP = 2**20


@dataclass(frozen=True)
class BudgetTable:
    """How samples of some lengths fall into batches of at most `tokens`.

    `lengths`: tokens of each sample, of shape ``(samples,)``; 0 counts as 1. A batch costs its
    longest sample times the number of samples (`cost` is ``"padded"``), or all its samples' tokens
    (``"sum"``). Raises `ValueError` where a length is negative, or more than the budget.
    """

    lengths: NDArray[np.integer]
    tokens: int
    cost: Cost

    def __post_init__(self) -> None:
        if not len(self.lengths):
            return
        longest = int(self.lengths.argmax())
        if self.lengths[longest] > self.tokens:
            raise ValueError(
                f"sample {longest} has {self.lengths[longest]} tokens, more than a batch may have "
                f"({self.tokens})"
            )
        least = int(self.lengths.argmin())
        if self.lengths[least] < 0:
            raise ValueError(f"sample {least} has the length {self.lengths[least]}")

    @property
    def nb_batches(self) -> int:
        """Of an epoch, over all consumers together."""
        return len(self._ends)

    def size(self, batch: int) -> int:
        """Samples in a batch."""
        return int(self._ends[batch]) - self._start(batch)

    def batches(
        self, start: int, stop: int, shuffle: bool, seed: int, epoch: int
    ) -> NDArray[np.int64]:
        """Which batches are at the positions ``[start, stop)`` of an epoch; at least one."""
        if not shuffle:
            return np.arange(start, stop)
        key = key64(_BATCHES, seed)
        return shuffled(start, stop, nb_samples=self.nb_batches, window=0, seed=key, epoch=epoch)

    def sizes(
        self, start: int, stop: int, shuffle: bool, seed: int, epoch: int
    ) -> NDArray[np.int64]:
        """Samples in each of these batches."""
        batches = self.batches(start, stop, shuffle, seed, epoch)
        starts = np.where(batches > 0, self._ends[batches - 1], 0)
        return self._ends[batches] - starts

    def samples(self, batch: int, shuffle: bool, seed: int, epoch: int) -> NDArray[np.int64]:
        """The samples of a batch in an epoch: int64, the longest first."""
        places = np.arange(self._start(batch), int(self._ends[batch]))
        if not shuffle:
            return self._sorted[places].astype(np.int64)
        first = int(np.searchsorted(self._classes, places[0], "right")) - 1
        last = int(np.searchsorted(self._classes, places[-1], "right"))
        for number in range(first, last):
            begin, end = int(self._classes[number]), int(self._classes[number + 1])
            low, high = np.searchsorted(places, [begin, end]).tolist()
            if end - begin > 1:
                within = (places[low:high] - begin).astype(np.uint64)
                key = key64(_EXCHANGE, seed, epoch, number)
                places[low:high] = begin + bijection(within, end - begin, key).astype(np.int64)
        return self._sorted[places].astype(np.int64)

    @cached_property
    def digest(self) -> str:
        """Of the lengths, whatever their type."""
        found = hashlib.blake2b(digest_size=8)
        for start in range(0, len(self.lengths), _DIGEST_STEP):
            found.update(self.lengths[start : start + _DIGEST_STEP].astype("<i8").tobytes())
        return found.hexdigest()

    def _start(self, batch: int) -> int:
        return int(self._ends[batch - 1]) if batch else 0

    @cached_property
    def _sorted(self) -> NDArray[np.integer]:
        """The samples, the longest first, and by number where they are as long."""
        longest = int(self.lengths.max(initial=0))
        keys = (longest - self.lengths).astype(np.min_scalar_type(longest))
        order = np.argsort(keys, kind="stable")
        return order.astype(np.uint32) if len(order) < 2**32 else order

    @cached_property
    def _classes(self) -> NDArray[np.int64]:
        """Where each length begins among the sorted samples, and the number of these."""
        counts = np.bincount(self.lengths)[::-1]
        return np.concatenate(([0], np.cumsum(counts[counts > 0])))

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Where each batch ends among the sorted samples."""
        bounds, lengths = self._classes.tolist(), self._class_lengths.tolist()
        sums = np.concatenate(([0], np.cumsum(np.diff(self._classes) * self._class_lengths)))
        pieces: list[NDArray[np.int64]] = []
        at = 0
        for number, length in enumerate(lengths):
            stop = bounds[number + 1]
            room = self.tokens // length
            whole = max(0, stop - at) // room
            if self.cost == "sum" and whole * room == stop - at:
                whole -= 1  # the last one may have room for shorter samples
            if whole > 0:
                pieces.append(at + room * np.arange(1, whole + 1))
                at += whole * room
            if at < stop:  # one that goes on with shorter samples
                at = self._end_of_mixed(at, number, room, sums)
                pieces.append(np.array([at]))
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)

    @cached_property
    def _class_lengths(self) -> NDArray[np.int64]:
        counts = np.bincount(self.lengths)
        return np.maximum(np.flatnonzero(counts)[::-1], 1)

    def _end_of_mixed(self, start: int, number: int, room: int, sums: NDArray[np.int64]) -> int:
        """Where a batch ends that begins with samples of the class `number`, and has others."""
        nb_samples = len(self.lengths)
        if self.cost == "padded":
            return min(start + room, nb_samples)
        length = int(self._class_lengths[number])
        target = int(sums[number]) + (start - int(self._classes[number])) * length + self.tokens
        last = int(np.searchsorted(sums, target, "right")) - 1  # the class where it ends
        if last >= len(self._class_lengths):
            return nb_samples
        return int(self._classes[last]) + (target - int(sums[last])) // int(
            self._class_lengths[last]
        )
