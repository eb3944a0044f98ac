"""What a producer has published and somebody may still need: a window of a stream. Pure.

Items have serial numbers. Every consumer has a cursor, the serial of the next item that it is to be
sent. Items below all cursors are forgotten, except within the *rubber band*: the current epoch from
its beginning, kept while it is short, so that who comes late can still have the whole epoch.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from swift_loader.sharing.messages import EpochBegins, EpochEnds, Position

__all__ = ["Band", "History", "Published"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Published(Generic[T]):
    """A batch at its position."""

    at: Position
    nbytes: int
    batch: T


@dataclass(frozen=True, slots=True)
class Band:
    """How much of an epoch's beginning is kept for late consumers."""

    share: float  # of the epoch's batches
    least: int  # batches
    max_bytes: int

    def holds(self, index: int, nb_batches: int | None, nbytes: int) -> bool:
        """Whether the first `index` batches, of `nbytes`, are within the band."""
        most = max(self.least, int(self.share * (nb_batches or 0)))
        return index <= most and nbytes <= self.max_bytes


class History(Generic[T]):
    """See the module's text."""

    def __init__(self, band: Band) -> None:
        self._band = band
        self._items: deque[EpochBegins | EpochEnds | Published[T]] = deque()
        self._first = 0  # serial of the oldest item
        self.begins: EpochBegins | None = None  # the epoch under way, or the last one
        self.whole_epoch: int | None = None  # the serial of `begins`, while all of it can be had
        self._band_bytes = 0
        self._ends: EpochEnds | None = None  # of the last epoch that is over
        self.next = Position(0, 0)  # of the next batch
        self.open = False  # an epoch is under way

    @property
    def head(self) -> int:
        """The serial that the next item will have."""
        return self._first + len(self._items)

    def begin(self, begins: EpochBegins) -> None:
        """An epoch begins."""
        self.begins = begins
        self.whole_epoch = self.head
        self._band_bytes = 0
        self.next = Position(begins.epoch, begins.first)
        self.open = True
        self._items.append(begins)

    def add(self, batch: T, nbytes: int) -> None:
        """The next batch of the epoch."""
        at = self.next
        assert self.begins is not None
        self._items.append(Published(at, nbytes, batch))
        self.next = Position(at.epoch, at.k + 1)
        self._band_bytes += nbytes
        count = at.k + 1 - self.begins.first
        if not self._band.holds(count, self.begins.nb_batches, self._band_bytes):
            self.whole_epoch = None

    def end(self, ends: EpochEnds) -> None:
        """The epoch ends."""
        self._items.append(ends)
        self._ends = ends
        self.next = Position(ends.epoch + 1, 0)
        self.open = False

    def __getitem__(self, serial: int) -> EpochBegins | EpochEnds | Published[T]:
        return self._items[serial - self._first]

    def nb_batches_from(self, serial: int) -> int:
        """Batches among the items from `serial` on."""
        return sum(
            isinstance(self._items[i], Published)
            for i in range(serial - self._first, len(self._items))
        )

    def position_behind(self, count: int) -> Position:
        """Where somebody is who is to take the last `count` batches yet."""
        if self.begins is None:
            return self.next
        if self.open:
            here = self.next.k - self.begins.first
            if count <= here or self._ends is None:
                return Position(self.next.epoch, self.next.k - min(count, here))
            count -= here
        if self._ends is None or not count:
            return self.next
        return Position(self._ends.epoch, max(0, self._ends.nb_batches - count))

    def find(self, at: Position) -> int | None:
        """The serial from which on nothing from `at` on is missing; None: something is gone."""
        if at >= self.next:
            return self.head
        for i, item in enumerate(self._items):
            if isinstance(item, Published) and item.at >= at:
                return self._first + i if item.at == at else None
            if isinstance(item, EpochEnds) and item.epoch >= at.epoch:
                return self._first + i if at >= Position(item.epoch, item.nb_batches) else None
            if isinstance(item, EpochBegins) and Position(item.epoch, item.first) >= at:
                return self._first + i if Position(item.epoch, item.first) == at else None
        return self.head if self._items else None

    def forget(self, lowest_cursor: int | None) -> None:
        """Drop what lies below every cursor (None: there is none) and outside of the band."""
        lowest = self.head if lowest_cursor is None else lowest_cursor
        if self.whole_epoch is not None:
            lowest = min(lowest, self.whole_epoch)
        while self._first < lowest:
            self._items.popleft()
            self._first += 1
