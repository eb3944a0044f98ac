"""The order of a stream: batch ``k`` is number ``k // workers`` of the shard ``k % workers``.

Nobody knows how long a shard is before it ends. The state of such an epoch counts batches, and
holds the dataset's own ``state_dict`` where it has one; otherwise a resumed worker goes through its
shard again up to where it was.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from swift_loader.errors import StateError
from swift_loader.order.order import Order
from swift_loader.order.part import UNKNOWN, EpochPart, Number, Taken
from swift_loader.order.state import Saved, State, own, refuse_state
from swift_loader.plan import JSON, Plan

__all__ = ["StreamOrder"]

_PLAN = 0


@dataclass(frozen=True)
class StreamOrder:
    """See the module's text. `seeds` is a plan for seeds and the batch size alone."""

    seeds: Plan
    consumer: int
    workers: int
    rest: EpochPart | None = None
    saved: Mapping[int, bytes] = field(default_factory=dict)  # by the number's k

    @property
    def known_ahead(self) -> bool:
        return True

    @property
    def nb_shards(self) -> int:
        return self.workers

    def plans(self) -> dict[int, Plan]:
        return {_PLAN: self.seeds}

    def part(self, epoch: int) -> EpochPart:
        if self.rest is not None and self.rest.epoch == epoch:
            return self.rest
        return EpochPart(_PLAN, epoch, UNKNOWN)

    def begin(self, epoch: int) -> Taken:
        return Taken(self.part(epoch))

    def batches(self, part: EpochPart) -> Iterator[tuple[Number, bytes]]:
        saved = self.saved if part is self.rest else {}
        return ((number, saved.get(number.k, b"")) for number in part.numbers())

    def samples(self, number: Number, details: bytes) -> list[Any]:
        return []

    def capture(self, taken: Taken) -> dict[str, Any]:
        part = taken.part
        ahead = tuple(sorted(taken.beyond))
        shards = {**self._shards_of(part), **taken.shards}
        more: dict[str, JSON] = {
            "worker_per_consumer": self.workers,
            "shards": {str(w): base64.b64encode(state).decode() for w, state in shards.items()},
        }
        saved = Saved("stream", self.seeds, part.epoch, self.consumer, taken.first, ahead, more)
        return saved.written()

    def resumed(self, state: State) -> tuple[Order, int]:
        fields = ("worker_per_consumer", "shards")
        saved = own(state, self.seeds, self.consumer, "stream", fields)
        workers = saved.more["worker_per_consumer"]
        if type(workers) is not int or workers != self.workers:
            raise StateError(
                f"worker_per_consumer was {workers!r:.100}, is now {self.workers}: the shards of a "
                "stream belong to workers; give as many, or start afresh without the state"
            )
        ahead = frozenset(saved.ahead)
        rest = EpochPart(_PLAN, saved.epoch, UNKNOWN, saved.delivered, ahead)
        shards = {
            self._first_of(worker, rest): state
            for worker, state in self._read_shards(saved.more["shards"]).items()
        }
        return replace(self, rest=rest, saved=shards), rest.epoch

    def _read_shards(self, shards: Any) -> dict[int, bytes]:
        numbers = {str(worker): worker for worker in range(self.workers)}
        if not isinstance(shards, Mapping) or not shards.keys() <= numbers.keys():
            raise refuse_state("shards", shards, f"has keys other than {list(numbers)}")
        try:
            return {numbers[w]: base64.b64decode(text, validate=True) for w, text in shards.items()}
        except (TypeError, ValueError) as error:
            raise refuse_state("shards", shards, f"is not base64 ({error})") from error

    def _shards_of(self, part: EpochPart) -> dict[int, bytes]:
        """What was saved of a part that is being resumed, by worker."""
        if part is not self.rest:
            return {}
        return {k % self.workers: state for k, state in self.saved.items()}

    def _first_of(self, worker: int, part: EpochPart) -> int:
        """The first number of a worker's that is still to come."""
        k = part.first + (worker - part.first) % self.workers
        while k in part.done:
            k += self.workers
        return k
