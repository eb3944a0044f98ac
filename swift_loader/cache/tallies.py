"""What clients have used without asking the store: each counts it in the store's memory.

A message for each batch would cost the store more than all else that it does while there is room
for all: each one finds its caches cold. So a client adds to a row of its own, which the store reads
when somebody asks for figures, and when the client has left (however it did).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from swift_loader.cache.messages import Rows

__all__ = ["NO_PLACE", "Tallies", "Tally", "tally_at"]

_COLUMNS = 4  # samples, bytes, microseconds that making them took, unused
NO_PLACE = -1
"""The place of a client that finds no row left: it asks the store, which counts."""


class Tally:
    """A client's own row."""

    def __init__(self, row: Rows) -> None:
        self._row = row

    def add(self, samples: int, nbytes: int, cost_us: int) -> None:
        """So much was used."""
        row = self._row
        row[0] += samples
        row[1] += nbytes
        row[2] += cost_us


def tally_at(memory: NDArray[np.uint8], place: int) -> Tally | None:
    """The row at a place; None for `NO_PLACE`."""
    return None if place == NO_PLACE else Tally(_table(memory)[place])


class Tallies:
    """All rows, by the store. They lie in these bytes, which are zeros at first."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._table = _table(memory)
        self._free = list(range(len(self._table)))[::-1]
        self._of: dict[int, tuple[int, int]] = {}  # place and consumer, by client
        self._left: dict[int, Rows] = {}  # by consumer

    def enter(self, client: int, consumer: int) -> int:
        """The place of a client that is there now."""
        if not self._free:
            return NO_PLACE
        place = self._free.pop()
        self._of[client] = place, consumer
        return place

    def leave(self, client: int) -> None:
        """It is gone, and its row is another one's."""
        if client not in self._of:
            return
        place, consumer = self._of.pop(client)
        self._left[consumer] = self._before(consumer) + self._table[place]
        self._table[place] = 0
        self._free.append(place)

    def of(self, consumer: int) -> tuple[int, int, int]:
        """Samples, bytes and microseconds of all clients of a consumer, those that left too."""
        total = self._before(consumer)
        for place, whose in self._of.values():
            if whose == consumer:
                total = total + self._table[place]
        samples, nbytes, cost_us, _ = total.tolist()
        return samples, nbytes, cost_us

    def _before(self, consumer: int) -> Rows:
        return self._left.get(consumer, np.zeros(_COLUMNS, np.int64))


def _table(memory: NDArray[np.uint8]) -> Rows:
    return memory.view(np.int64).reshape(-1, _COLUMNS)
