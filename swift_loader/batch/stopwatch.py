"""Which sample of a batch took longest: a data set that looks at the clock around another one's.

That costs 0.2 us a sample, so it is only worth it where samples take longer than `WORTH_S`: the
maker of batches switches it on once one batch did, for the next `KEPT` batches.
"""

from __future__ import annotations

import time
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
