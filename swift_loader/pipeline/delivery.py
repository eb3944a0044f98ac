"""Batches on their way to the training loop: put in any order, taken in the plan's. Pure.

With `in_order` the next number is the lowest of the epoch that was not taken; otherwise any number
of the epoch that is there, first come first served. Numbers of later epochs wait.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from swift_loader.order.part import UNKNOWN, EpochPart, Number, Taken

__all__ = ["NOTHING", "Delivery"]

T = TypeVar("T")
NOTHING = EpochPart(plan_id=-1, epoch=-1, count=0)


class Delivery(Generic[T]):
    """What is ready, and what was taken of the current part."""

    def __init__(self, in_order: bool) -> None:
        self._in_order = in_order
        self._ready: dict[Number, T] = {}
        self.part = NOTHING
        self._taken = Taken(self.part)
        self._skipped: set[Number] = set()  # of parts that are not begun
        self._counts: dict[EpochPart, int] = {}  # of parts that could not tell at their beginning

    def begin(self, part: EpochPart, keep: set[Number]) -> list[T]:
        """Deliver `part` now. Of what is ready, `keep` is still wanted; returns the rest."""
        self.part = part
        self._taken = Taken(part)
        for number in [n for n in self._skipped if n.epoch <= part.epoch]:
            self._skipped.discard(number)
            if number in part:
                self._taken.add(number.k)
        if part in self._counts:
            self._taken.left -= _too_many(part, self._counts.pop(part))
        return [self._ready.pop(number) for number in list(self._ready) if number not in keep]

    def forget(self) -> None:
        """Numbers are given out afresh: what was skipped of parts to come does not hold."""
        self._skipped.clear()
        self._counts.clear()

    @property
    def left(self) -> int:
        """Batches of the current part that were not taken yet."""
        return self._taken.left

    def ready(self) -> set[Number]:
        return set(self._ready)

    def __len__(self) -> int:
        return len(self._ready)

    def put(self, number: Number, item: T) -> None:
        self._ready[number] = item

    def wanted(self) -> Number | None:
        """The number that the training loop waits for; None if any of the epoch will do."""
        part = self.part
        if not self._in_order or not self._taken.left:
            return None
        return Number(part.plan_id, part.epoch, self._taken.first)

    def skip(self, number: Number) -> None:
        """There is no such batch; it is as if it had been taken."""
        if number in self.part:
            self._taken.add(number.k)
        else:
            self._skipped.add(number)

    def ends(self, part: EpochPart, count: int) -> None:
        """Only now it is known that `part` has `count` batches."""
        if part.count != UNKNOWN:
            return
        if part == self.part:
            self._taken.left -= _too_many(part, count)
        else:
            self._counts[part] = count

    def has_next(self) -> bool:
        """Whether `take` would give a batch."""
        return self._choose() is not None

    def take(self) -> tuple[Number, T] | None:
        """The next batch, or None when it is not there (or nothing is left)."""
        number = self._choose()
        if number is None:
            return None
        self._taken.add(number.k)
        return number, self._ready.pop(number)

    def _choose(self) -> Number | None:
        if not self._taken.left:
            return None
        part = self.part
        if self._in_order:
            number = Number(part.plan_id, part.epoch, self._taken.first)
            return number if number in self._ready else None
        return next((number for number in self._ready if number in part), None)


def _too_many(part: EpochPart, count: int) -> int:
    """By how much a part that turns out to have `count` batches is smaller than it seemed."""
    return UNKNOWN - count - sum(1 for k in part.done if k >= count)
