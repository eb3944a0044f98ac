"""The numbers to be given out, part after part, ahead of the training loop. Pure.

A number has one of these states, and changes as the table says:

| state | means | may become |
|---|---|---|
| `NEW` | was not drawn, or nobody wants it (any more) | `WAITING`, `GIVEN`, `DONE` (it is none) |
| `WAITING` | was drawn, no worker has it | `GIVEN`, `NEW` |
| `GIVEN` | a worker is to make it | `READY`, `WAITING` (it died), `DONE` (its shard ended), `NEW` |
| `READY` | its batch, or an error, is here | `DONE`, `NEW` |
| `DONE` | the training loop had it, or need not wait for it | `NEW` |

It becomes `NEW` where the training loop begins something else and does not want it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Final

from swift_loader.order.order import Order
from swift_loader.order.part import EpochPart, Number, ShardsOver

__all__ = ["AFTER", "NumberState", "Numbers"]

_PARTS_AHEAD = 2


class NumberState(Enum):
    """See the module's text."""

    NEW, WAITING, GIVEN, READY, DONE = range(5)


_N = NumberState
AFTER: Final = {
    _N.NEW: {_N.WAITING, _N.GIVEN, _N.DONE},
    _N.WAITING: {_N.GIVEN, _N.NEW},
    _N.GIVEN: {_N.READY, _N.WAITING, _N.DONE, _N.NEW},
    _N.READY: {_N.DONE, _N.NEW},
    _N.DONE: {_N.NEW},
}


class Numbers(Iterator[Number]):
    """Endless numbers, epoch after epoch; ends only where an epoch is empty, or is not known ahead.

    `passed_over`: numbers of a part that it has none of, and `ends`: parts that were given out to
    their end, with the number of their batches. Both are for whoever asked for numbers to take.
    """

    def __init__(self, part: EpochPart, order: Order) -> None:
        self.order = order
        self.passed_over: list[Number] = []
        self.ends: list[tuple[EpochPart, int]] = []
        self._details: dict[Number, bytes] = {}  # of numbers that are not consumed
        self._shards_over: dict[int, dict[int, int]] = {}  # by epoch: each one's first missing k
        self._ahead = deque([part])  # entered, not begun by the training loop
        self._over = False
        self._enter(part)

    def _enter(self, part: EpochPart) -> None:
        self._last = part
        self._next_k = part.first
        self._inner = self.order.batches(part)
        self._told = False  # that this part has ended

    def begin(self, part: EpochPart) -> bool:
        """The training loop begins `part`. False: its numbers were not given from its start."""
        while self._ahead:
            if self._ahead.popleft() == part:
                now = part.epoch
                self._details = {n: d for n, d in self._details.items() if n.epoch >= now}
                self._shards_over = {e: s for e, s in self._shards_over.items() if e >= now}
                return True
        return False

    def ahead(self) -> list[EpochPart]:
        """Parts of which numbers were given before the training loop has begun them."""
        return list(self._ahead)

    def details(self, number: Number) -> bytes:
        """What a worker must know of a number that was given out and is not consumed."""
        return self._details.get(number, b"")

    def consumed(self, number: Number) -> None:
        """It will not be asked for again."""
        if self._details:
            self._details.pop(number, None)

    def shard_over(self, number: Number) -> None:
        """There is no such batch: its shard has ended before it."""
        over = self._shards_over.setdefault(number.epoch, {})
        shard = number.k % self.order.nb_shards
        over[shard] = min(number.k, over.get(shard, number.k))

    def shards_over(self, epoch: int) -> ShardsOver | None:
        """The shards that have ended in this epoch; None where there are none."""
        over = self._shards_over.get(epoch)
        return ShardsOver(self.order.nb_shards, dict(over)) if over else None

    def __next__(self) -> Number:
        while not self._over:
            found = self._next_of_part()
            if found is not None:
                number, details = found
                for k in range(self._next_k, number.k):
                    passed_over = Number(number.plan_id, number.epoch, k)
                    if passed_over in self._last:
                        self.passed_over.append(passed_over)
                self._next_k = number.k + 1
                if details:
                    self._details[number] = details
                return number
            if not self._told:
                self._told = True
                self.ends.append((self._last, self._next_k))
            if len(self._ahead) > _PARTS_AHEAD:
                break  # for now: epochs of a few batches, or of none, would come by the thousand
            following = self.order.part(self._last.epoch + 1)
            if not self.order.known_ahead or not len(following):
                self._over = True
                break
            self._ahead.append(following)
            self._enter(following)
        raise StopIteration

    def _next_of_part(self) -> tuple[Number, bytes] | None:
        nb_shards = self.order.nb_shards
        if not nb_shards:
            return next(self._inner, None)
        over = self._shards_over.get(self._last.epoch, ())
        if len(over) == nb_shards:
            return None
        return next((one for one in self._inner if one[0].k % nb_shards not in over), None)
