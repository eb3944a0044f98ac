"""The order of a stream: batch ``k`` is number ``k // workers`` of the shard ``k % workers``.

Nobody knows how long a shard is before it ends. The state of such an epoch counts batches, and
holds the dataset's own ``state_dict`` where it has one; otherwise a resumed worker goes through its
shard again up to where it was.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from swift_loader.errors import StateError
from swift_loader.order.order import Order, State
from swift_loader.order.part import UNKNOWN, EpochPart, Number, Taken
from swift_loader.plan import Plan

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

    def batches(self, part: EpochPart) -> Iterator[tuple[Number, bytes]]:
        saved = self.saved if part is self.rest else {}
        return ((number, saved.get(number.k, b"")) for number in part.numbers())

    def samples(self, number: Number, details: bytes) -> list[Any]:
        return []

    def capture(self, taken: Taken) -> dict[str, Any]:
        part = taken.part
        ended = not taken.left
        shards = {**self._shards_of(part), **taken.shards}
        return {
            "version": 1,
            "stream": True,
            **self._setup(),
            "epoch": part.epoch + ended,
            "delivered": 0 if ended else taken.first,
            "ahead": [] if ended else sorted(taken.beyond),
            "shards": {}
            if ended
            else {str(w): base64.b64encode(state).decode() for w, state in shards.items()},
        }

    def resumed(self, state: State) -> tuple[Order, int]:
        own: Any = state
        if isinstance(state, Sequence):
            own = next((one for one in state if one.get("consumer") == self.consumer), None)
        if not isinstance(own, Mapping) or own.get("stream") is not True:
            raise StateError(
                "the state is not of a loader of a stream; give what state_dict() of this consumer "
                "returned, and build the loader with the same dataset"
            )
        differing = [
            f"{name} was {own.get(name)!r}, is now {value!r}"
            for name, value in {"version": 1, **self._setup()}.items()
            if own.get(name) != value
        ]
        if differing:
            raise StateError(
                f"{', '.join(differing)}: a stream can be resumed in the same set-up only, since "
                "its shards belong to workers"
            )
        rest = EpochPart(_PLAN, own["epoch"], UNKNOWN, own["delivered"], frozenset(own["ahead"]))
        saved = {
            self._first_of(int(worker), rest): base64.b64decode(text)
            for worker, text in own["shards"].items()
        }
        return replace(self, rest=rest, saved=saved), rest.epoch

    def _setup(self) -> dict[str, Any]:
        return {
            "seed": self.seeds.seed,
            "batch_size": self.seeds.batch_size,
            "nb_consumer": self.seeds.nb_consumer,
            "consumer": self.consumer,
            "worker_per_consumer": self.workers,
        }

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
