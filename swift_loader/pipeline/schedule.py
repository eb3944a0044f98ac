"""The order of batch numbers: this epoch from where it stands, then the next ones. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from swift_loader.transport.messages import Number

__all__ = ["EpochPart", "Numbers"]


@dataclass(frozen=True, slots=True)
class EpochPart:
    """What this consumer takes of an epoch: batches `first` to `count`, less those `done`."""

    plan_id: int
    epoch: int
    count: int
    first: int = 0
    done: frozenset[int] = frozenset()  # delivered out of order before a resume

    def numbers(self) -> Iterator[Number]:
        for k in range(self.first, self.count):
            if k not in self.done:
                yield Number(self.plan_id, self.epoch, k)

    def __len__(self) -> int:
        return self.count - self.first - sum(1 for k in self.done if k >= self.first)

    def __contains__(self, number: Number) -> bool:
        return (
            number.plan_id == self.plan_id
            and number.epoch == self.epoch
            and self.first <= number.k < self.count
            and number.k not in self.done
        )


class Numbers(Iterator[Number]):
    """Endless numbers, epoch after epoch; ends only where an epoch is empty."""

    def __init__(self, part: EpochPart, following: Callable[[int], EpochPart]) -> None:
        self._following = following
        self._last = part
        self._inner = part.numbers()
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
        while True:
            number = next(self._inner, None)
            if number is not None:
                return number
            following = self._following(self._last.epoch + 1)
            if not len(following):
                raise StopIteration
            self._last = following
            self._ahead.append(following)
            self._inner = following.numbers()
