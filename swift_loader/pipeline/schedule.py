"""What a consumer takes of an epoch, and the order of batch numbers over epochs. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from swift_loader.transport.messages import Number

__all__ = ["UNKNOWN", "EpochPart", "Numbers"]

_PARTS_AHEAD = 2
UNKNOWN = 2**62  # the count of a part that nobody can tell before its end


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

    @property
    def size(self) -> int:
        """Batches of the part; `TypeError` where nobody can tell before its end."""
        if self.count == UNKNOWN:
            raise TypeError("an epoch of a stream, or of a sampler without a length, has none")
        return len(self)

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
