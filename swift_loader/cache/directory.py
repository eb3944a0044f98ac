"""Where samples lie for good: a table in the store's memory that all of its clients read.

While there is room for all, what is kept stays where it is. So a worker need not ask the store for
it batch by batch: it reads the table, copies the samples, and looks whether that still held. Once
room is scarce, the store says so in a word before it gives a place to something else, and from then
on the table is of no use.

A row is written once, from zeros, and counts when no number of it is 0. So nothing depends on the
order in which its numbers are seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from mmap import PAGESIZE

import numpy as np
from numpy.typing import NDArray

from swift_loader.cache.messages import IN_MEMORY, Rows

__all__ = ["Directory", "directory_bytes"]

_COLUMNS = 4
_TALLIES_BYTES = 1 << 16
_MOST_SAMPLES = 1 << 26
Bytes = NDArray[np.uint8]


def directory_bytes(nb_samples: int) -> int:
    """What it takes for a data set of this length; what is not written takes no memory."""
    return PAGESIZE + _TALLIES_BYTES + 8 * _COLUMNS * min(max(nb_samples, 0), _MOST_SAMPLES)


class Directory:
    """Lies in these bytes, which begin at a page and are zeros at first."""

    def __init__(self, memory: Bytes) -> None:
        self._has_ended = memory[:8].view(np.int64)
        table = PAGESIZE + _TALLIES_BYTES
        self.tallies_bytes = memory[PAGESIZE:table]  # see `swift_loader.cache.tallies`
        self._table = memory[table:].view(np.int64).reshape(-1, _COLUMNS)

    # ---- by the store

    def note(self, settled: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Samples lie there: number, offset, bytes of numbers and skeleton of each, and the
        microseconds that making it took.
        """
        rows = np.array(settled, np.int64).reshape(-1, 1 + _COLUMNS)
        rows = rows[rows[:, 0] < len(self._table)]
        self._table[rows[:, 0]] = rows[:, 1:] + 1

    def end(self) -> None:
        """From now on, nothing lies anywhere for good."""
        self._has_ended[0] = 1

    # ---- by a client

    def rows_of(self, keys: Rows) -> tuple[Rows, int] | None:
        """Rows as those of `Answer`, and the microseconds that making all these took.

        None where one of the samples isn't there for good.
        """
        if self._has_ended[0] or not len(keys) or keys.max() >= len(self._table) or keys.min() < 0:
            return None
        found = self._table[keys]
        if not found.all():
            return None
        rows = np.full((len(keys), 6), -1, np.int64)
        rows[:, 0] = IN_MEMORY
        rows[:, 2:5] = found[:, :3] - 1
        return rows, int(found[:, 3].sum()) - len(keys)

    @property
    def holds(self) -> bool:
        """Whether what was read since `rows_of` was what it told of."""
        return not self._has_ended[0]
