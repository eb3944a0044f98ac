"""The order of a stream: batch ``k`` is number ``k // workers`` of the shard ``k % workers``.

Nobody knows how long a shard is before it ends. The state of such an epoch counts batches, and
holds the dataset's own ``state_dict`` as plain data where it has one; otherwise a resumed worker
goes through its shard again up to where it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from swift_loader.batch.plain import from_plain
from swift_loader.errors import StateError
from swift_loader.order.order import Order
from swift_loader.order.part import UNKNOWN, EpochPart, Number, Taken
from swift_loader.order.state import Saved, State, integer, own, refuse_state
from swift_loader.plan import JSON, Plan

__all__ = ["StreamOrder"]

_PLAN = 0
_SHARD_FIELDS = {"batch", "position", "ended", "over", "split", "dataset", "iterator"}


@dataclass(frozen=True)
class StreamOrder(Order):
    """See the module's text. `seeds` is a plan for seeds and the batch size alone."""

    seeds: Plan
    consumer: int
    workers: int
    rest: EpochPart | None = None
    saved: Mapping[int, bytes] = field(default_factory=dict)  # by the number's k

    @property
    def one_stands_for_all(self) -> bool:
        return False

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
        ahead = tuple(sorted(taken.beyond))
        shards = {**self._shards_of(part), **taken.shards}
        more: dict[str, JSON] = {
            "worker_per_consumer": self.workers,
            "shards": {str(worker): _shown(shards[worker]) for worker in sorted(shards)},
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
        numbers = {str(worker): worker for worker in range(self.workers)}
        shards = saved.more["shards"]
        if not isinstance(shards, Mapping) or not shards.keys() <= numbers.keys():
            raise refuse_state("shards", shards, f"has keys other than {list(numbers)}")
        told = {}
        for name, shard in shards.items():
            k = rest.first_of(numbers[name], self.workers)
            _check_shard(shard, f"shards[{name!r}]", k // self.workers)
            told[k] = json.dumps(shard).encode()
        return replace(self, rest=rest, saved=told), rest.epoch

    def _shards_of(self, part: EpochPart) -> dict[int, bytes]:
        """What was saved of a part that is being resumed, by worker."""
        if part is not self.rest:
            return {}
        return {k % self.workers: state for k, state in self.saved.items()}


def _shown(shard: bytes) -> JSON:
    """What a worker told of its shard. Raises `StateError` where it could not."""
    told: dict[str, JSON] = json.loads(shard)
    if "why_not" in told:
        raise StateError(f"the stream's state can't be saved: {told['why_not']}")
    return told


def _check_shard(shard: Any, name: str, batches: int) -> None:
    """Raises `StateError` unless a worker that has made at most `batches` could have told it."""
    if not isinstance(shard, Mapping) or shard.keys() != _SHARD_FIELDS:
        raise refuse_state(name, shard, f"does not have the fields {sorted(_SHARD_FIELDS)}")
    try:
        read = integer(shard, "batch", 0, batches) + integer(shard, "position", 0, 2**62)
    except StateError as error:
        raise StateError(f"{name}: {error}") from None
    if type(shard["ended"]) is not bool or type(shard["over"]) is not bool:
        raise refuse_state(name, shard, "has fields 'ended' and 'over' that are not true or false")
    if shard["over"] and (shard["ended"] or read):
        raise refuse_state(f"{name}['over']", True, "where something of the epoch was read")
    if shard["split"] not in ("workers", "ranks"):
        raise refuse_state(f"{name}['split']", shard["split"], "is not 'workers' or 'ranks'")
    for field_name in ("dataset", "iterator"):
        plain, where = shard[field_name], f"{name}[{field_name!r}]"
        if plain is None:
            continue
        if type(plain) is not list or len(plain) != 1:
            raise refuse_state(where, plain, "is no list of one state")
        from_plain(plain[0], f"the state's {where}[0]")
