"""What a consumer takes of each epoch, and the order of batch numbers over epochs. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from swift_loader.plan import Plan, Resume
from swift_loader.transport.messages import Number

__all__ = ["PLAN", "RESUMED_PLAN", "Course", "EpochPart", "Numbers"]

PLAN, RESUMED_PLAN = 0, 1  # plan ids: the loader's own, then those of resumed epochs


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


@dataclass(frozen=True, slots=True)
class Course:
    """What a consumer takes of every epoch: its share, or what a loaded state left of it.

    It holds nothing of the loader: the pipeline asks it for the epochs to come, and must not keep
    a loader alive that nobody else holds.
    """

    plan: Plan
    consumer: int
    resumed: Resume | None = None

    def part(self, epoch: int) -> EpochPart:
        """What is taken of `epoch`."""
        again = self.resumed
        if again is not None and again.epoch == epoch:
            count = again.plan.nb_batches(self.consumer)
            return EpochPart(RESUMED_PLAN, epoch, count, again.first_batch, frozenset(again.ahead))
        return EpochPart(PLAN, epoch, self.plan.nb_batches(self.consumer))

    def plan_of(self, part: EpochPart) -> Plan:
        """The plan that the numbers of `part` are of."""
        if part.plan_id == RESUMED_PLAN and self.resumed is not None:
            return self.resumed.plan
        return self.plan


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
