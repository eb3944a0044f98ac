"""Which sample of a batch took longest: a data set that looks at the clock around another one's.

That costs up to 0.2 us a sample, so it is only worth it where samples take longer than `WORTH_S`:
the maker of batches switches it on once one batch did, for the next `KEPT` batches.
"""

from __future__ import annotations

import time
from collections.abc import MutableSequence
from typing import Any

__all__ = ["KEPT", "WORTH_S", "Stopwatch"]

WORTH_S = 10e-6
KEPT = 1000


class Stopwatch:
    """Stands in for `dataset` where samples are fetched one by one, also by several threads."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._longest_s = 0.0
        self._index: Any = None

    def __getitem__(self, index: Any) -> Any:
        began_s = time.perf_counter()
        sample = self._dataset[index]
        self.add(index, time.perf_counter() - began_s)
        return sample

    def fetch(
        self, indices: Any, samples: list[Any], progress: MutableSequence[int] | memoryview
    ) -> None:
        """Append the samples of these, one by one; `progress[0]` is set to each index before.

        A call a sample would cost four times as much as looking at the clock does.
        """
        dataset, clock = self._dataset, time.perf_counter
        longest_s, slowest = 0.0, None
        began_s = clock()
        for index in indices:
            progress[0] = index
            samples.append(dataset[index])
            now_s = clock()
            if now_s - began_s > longest_s:
                longest_s, slowest = now_s - began_s, index
            began_s = now_s
        self.add(slowest, longest_s)

    def add(self, index: Any, took_s: float) -> None:
        """Sample `index` took so long, for a part of its way."""
        if took_s > self._longest_s:
            self._longest_s, self._index = took_s, index

    def read(self) -> tuple[float, int]:
        """Seconds and index of the slowest sample since the last call; (0, -1) where none was
        timed, or its key is no whole number."""
        longest_s, index = self._longest_s, self._index
        self._longest_s, self._index = 0.0, None
        if type(index) is not int or not 0 <= index < 2**63:
            return 0.0, -1
        return longest_s, index
