"""Which of the kept samples is wanted last. Pure.

Belady's rule ("A study of replacement algorithms for a virtual-storage computer", 1966): throw out
what is wanted farthest in the future, and only for something that is wanted sooner. A plan knows
the future, so the rule is no guess here. Where nothing is known, every sample is wanted at `NEVER`:
none is wanted sooner, so whatever came first stays for good, which is what CoorDL's MinIO cache
does (Mohan et al., "Analyzing and mitigating data stalls in DNN training", VLDB 2021). A rule of
recent use is of no use under a shuffle: what was used last is wanted last.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Generator, Hashable
from typing import Generic, TypeVar

__all__ = ["Farthest"]

K = TypeVar("K", bound=Hashable)


class Farthest(Generic[K]):
    """Keys, each with the time when it is wanted next."""

    def __init__(self) -> None:
        self._time: dict[K, int] = {}
        self._at: dict[int, dict[K, None]] = {}
        self._heap: list[int] = []  # times, negated; each of `_at` once

    def __len__(self) -> int:
        return len(self._time)

    def __contains__(self, key: K) -> bool:
        return key in self._time

    def put(self, key: K, time: int) -> None:
        """`key` is wanted at `time`, and not before."""
        old = self._time.get(key)
        if old == time:
            return
        if old is not None:
            del self._at[old][key]
        self._time[key] = time
        there = self._at.get(time)
        if there is None:
            there = self._at[time] = {}
            heapq.heappush(self._heap, -time)
        there[key] = None

    def remove(self, key: K) -> None:
        """Forget `key`."""
        del self._at[self._time.pop(key)][key]

    def outside(self, first: int, last: float = math.inf) -> list[K]:
        """Keys that are not wanted from `first` on and before `last`."""
        return [key for key, when in self._time.items() if not first <= when < last]

    def later_than(self, time: int) -> Generator[K, None, None]:
        """Keys that are wanted after `time`, the last first. Nothing may change meanwhile."""
        looked_at = []
        try:
            while self._heap and -self._heap[0] > time:
                negated = heapq.heappop(self._heap)
                there = self._at[-negated]
                if not there:
                    del self._at[-negated]
                    continue
                looked_at.append(negated)
                yield from there
        finally:
            for negated in looked_at:
                heapq.heappush(self._heap, negated)
