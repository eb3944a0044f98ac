"""The numbers to be given out, part after part, ahead of the training loop. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from swift_loader.order.part import EpochPart, Number

__all__ = ["Numbers"]

_PARTS_AHEAD = 2


class Numbers(Iterator[Number]):
    """Endless numbers, epoch after epoch; ends only where an epoch is empty.

    `numbers_of` gives those of a part. `missing` is called for each that it passes over, and
    `ended(part, count)` when a part is given out.
    """

    def __init__(
        self,
        part: EpochPart,
        following: Callable[[int], EpochPart],
        numbers_of: Callable[[EpochPart], Iterator[Number]],
        missing: Callable[[Number], None],
        ended: Callable[[EpochPart, int], None],
    ) -> None:
        self._following = following
        self._numbers_of = numbers_of
        self._missing = missing
        self._ended = ended
        self._last = part
        self._next_k = part.first
        self._inner = numbers_of(part)
        self._over = False
        self._told = False  # that the last part has ended
        self._ahead = deque([part])  # entered, not begun by the training loop

    def begin(self, part: EpochPart) -> bool:
        """The training loop begins `part`. False: its numbers were not given from its start."""
        while self._ahead:
            if self._ahead.popleft() == part:
                return True
        return False

    def ahead(self) -> list[EpochPart]:
        """Parts of which numbers were given before the training loop has begun them."""
        return list(self._ahead)

    def __next__(self) -> Number:
        while not self._over:
            number = next(self._inner, None)
            if number is not None:
                for k in range(self._next_k, number.k):
                    passed_over = Number(number.plan_id, number.epoch, k)
                    if passed_over in self._last:
                        self._missing(passed_over)
                self._next_k = number.k + 1
                return number
            if not self._told:
                self._told = True
                self._ended(self._last, self._next_k)
            if len(self._ahead) > _PARTS_AHEAD:
                break  # for now: epochs of a few batches, or of none, would come by the thousand
            following = self._following(self._last.epoch + 1)
            if not len(following):
                self._over = True
                break
            self._last = following
            self._told = False
            self._next_k = following.first
            self._ahead.append(following)
            self._inner = self._numbers_of(following)
        raise StopIteration
