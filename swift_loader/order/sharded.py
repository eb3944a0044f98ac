"""The order of a stream that tells its shards. Pure.

As in `swift_loader.order.stream`, batch ``k`` is number ``k // workers`` of the worker
``k % workers``. But which shards a worker reads follows from the plan, and each batch says how far
its worker has come. So the states of all consumers tell what is left of each shard, and that can be
dealt to any number of consumers and workers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from swift_loader.errors import StateError
from swift_loader.order.order import Order
from swift_loader.order.part import UNKNOWN, EpochPart, Number, Taken
from swift_loader.order.resume import complete, untouched
from swift_loader.order.state import Saved, State, check_same_run, integer, read, refuse_state
from swift_loader.plan import JSON, Plan
from swift_loader.plan.shards import Done, ShardDeal, Unit

__all__ = ["ShardedOrder", "units_of_text"]

_PLAN, _RESUMED_PLAN = 0, 1
_FIELDS = ("worker_per_consumer", "shards", "units", "lanes")
_FACTS = ("count", "digest", "buffer")
_UNBOUND = 2**62
_PLAIN = Plan(_UNBOUND, 1, 1, True, 0, 0)
_LANE_FIELDS = {"batch", "left", "lengths"}


@dataclass(frozen=True)
class _Rest:
    """What a loaded state left of its epoch. `saved`: what workers begin with, by number."""

    part: EpochPart
    deal: ShardDeal
    plan: Plan
    saved: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardedOrder(Order):
    """See the module's text. `plan` is for seeds and the batch size; `digest`: of the shards."""

    plan: Plan
    deal: ShardDeal
    digest: str
    consumer: int
    rest: _Rest | None = None

    @classmethod
    def of(
        cls, deal: ShardDeal, digest: str, consumer: int, batch_size: int, tail: Any
    ) -> ShardedOrder:
        """Of a whole run."""
        plan = Plan(_UNBOUND, batch_size, deal.nb_consumer, deal.shuffle, 0, deal.seed, tail)
        return cls(plan, deal, digest, consumer)

    @property
    def one_stands_for_all(self) -> bool:
        return False

    @property
    def nb_shards(self) -> int:
        return self.deal.worker_per_consumer

    def plans(self) -> dict[int, Plan]:
        plans = {_PLAN: self.plan}
        if self.rest is not None:
            plans[_RESUMED_PLAN] = self.rest.plan
        return plans

    def part(self, epoch: int) -> EpochPart:
        if self.rest is not None and self.rest.part.epoch == epoch:
            return self.rest.part
        return EpochPart(_PLAN, epoch, UNKNOWN)

    def batches(self, part: EpochPart) -> Iterator[tuple[Number, bytes]]:
        rest = self.rest
        saved = rest.saved if rest is not None and part == rest.part else {}
        return ((number, saved.get(number.k, b"")) for number in part.numbers())

    def samples(self, number: Number, details: bytes) -> list[Any]:
        return []

    def capture(self, taken: Taken) -> dict[str, Any]:
        part, rest = taken.part, self.rest
        of_rest = rest if rest is not None and part == rest.part else None
        deal, plan = (self.deal, self.plan) if of_rest is None else (of_rest.deal, of_rest.plan)
        workers = self.nb_shards
        lanes = {k % workers: each for k, each in of_rest.saved.items()} if of_rest else {}
        lanes.update(taken.shards)
        more: dict[str, JSON] = {
            "worker_per_consumer": workers,
            "shards": self._facts,
            "units": None if deal.units is None else _written(deal.units),
            "lanes": {str(worker): json.loads(lanes[worker]) for worker in sorted(lanes)},
        }
        ahead = tuple(sorted(taken.beyond))
        return Saved("shards", plan, part.epoch, self.consumer, taken.first, ahead, more).written()

    def resumed(self, state: State) -> tuple[Order, int]:
        states = read(state, "shards", _FIELDS)
        for one in states:
            self._check_same(one)
            self._check_lanes(one)
        own = next((one for one in states if one.consumer == self.consumer), None)
        deals = {one.consumer: self._deal_of(one) for one in states}
        if own is not None and self._goes_on_alike(own, deals[own.consumer]):
            return self._going_on(own, deals[own.consumer])
        if isinstance(state, Mapping) and self._is_fresh(states[0]):
            return replace(self, rest=None), states[0].epoch
        if isinstance(state, Mapping) and states[0].plan.nb_consumer > 1:
            was = states[0].plan
            raise StateError(
                f"the state is of consumer {states[0].consumer} of {was.nb_consumer}, with "
                f"{deals[states[0].consumer].worker_per_consumer} workers and batches of "
                f"{was.batch_size}; this is consumer {self.consumer} of {self.plan.nb_consumer}, "
                f"with {self.nb_shards} and {self.plan.batch_size}. What is left of the shards is "
                "known from all states together: give the list of the states of all consumers"
            )
        everyone = complete(states)
        begun = min(everyone, key=lambda each: (each.epoch, untouched(each)))
        if all(each.epoch == begun.epoch and self._is_fresh(each) for each in everyone):
            return replace(self, rest=None), begun.epoch
        deal = deals[begun.consumer]
        done = []
        for each in everyone:
            lanes = self._lanes_of(each, deal)
            for worker in range(deal.worker_per_consumer):
                if each.epoch > begun.epoch:
                    ended = Done(0, (0,) * len(deal.lane(begun.epoch, each.consumer, worker)))
                    done.append((each.consumer, worker, ended))
                elif worker in lanes:
                    done.append((each.consumer, worker, lanes[worker][1]))
        units = deal.without(begun.epoch, done)
        return self._dealt_again(begun.epoch, units), begun.epoch

    @property
    def facts(self) -> dict[str, JSON]:
        """What all consumers must agree on."""
        return {**{f"shards: {name}": value for name, value in self._facts.items()},
                "worker_per_consumer": self.nb_shards}  # fmt: skip

    @property
    def _facts(self) -> dict[str, JSON]:
        return {
            "count": self.deal.nb_shards,
            "digest": self.digest,
            "buffer": self.deal.buffer,
        }

    def _goes_on_alike(self, own: Saved, deal: ShardDeal) -> bool:
        """Whether everything is as it was, so that the worker's parts stay its own."""
        return (
            own.plan.nb_consumer == self.plan.nb_consumer
            and own.plan.batch_size == self.plan.batch_size
            and own.plan.tail == self.plan.tail
            and deal.worker_per_consumer == self.nb_shards
        )

    def _going_on(self, own: Saved, deal: ShardDeal) -> tuple[Order, int]:
        ahead = frozenset(own.ahead)
        if self._is_fresh(own):
            return replace(self, rest=None), own.epoch
        part = EpochPart(_RESUMED_PLAN, own.epoch, UNKNOWN, own.delivered, ahead)
        plan = replace(own.plan, shards=text_of_units(deal.units))
        told = {}
        for worker, (batch, done) in self._lanes_of(own, deal).items():
            k = part.first_of(worker, deal.worker_per_consumer)
            lane = {"batch": batch, "left": done.left, "lengths": list(done.lengths)}
            told[k] = json.dumps(lane).encode()
        return replace(self, rest=_Rest(part, deal, plan, told)), own.epoch

    def _dealt_again(self, epoch: int, units: tuple[Unit, ...]) -> Order:
        part = EpochPart(_RESUMED_PLAN, epoch, UNKNOWN if units else 0)
        text = text_of_units(units)
        start = 1 + self.deal.key(epoch, 0, 0) % 2**40 + len(text)  # seeds of its own
        plan = replace(self.plan, spans=((start, _UNBOUND),), shards=text)
        return replace(self, rest=_Rest(part, replace(self.deal, units=units), plan))

    def _is_fresh(self, one: Saved) -> bool:
        return untouched(one) and not one.more["lanes"] and one.more["units"] is None

    def _check_same(self, one: Saved) -> None:
        said = one.more["shards"]
        if not isinstance(said, Mapping) or said.keys() != set(_FACTS):
            raise refuse_state("shards", said, f"does not have the fields {list(_FACTS)}")
        alike = replace(
            one.plan, spans=None, nb_consumer=1, seed=0, batch_size=1, tail="balanced", shuffle=True
        )
        if alike != _PLAIN:
            raise refuse_state("plan", one.plan, "is none of a stream that tells its shards")
        was = {**said, "seed": one.plan.seed, "shuffle": one.plan.shuffle}
        facts = {**self._facts, "seed": self.plan.seed, "shuffle": self.plan.shuffle}
        check_same_run("other shards, or of another run", was, facts)

    def _check_lanes(self, one: Saved) -> None:
        """Raises `StateError` where a worker has told of more than was delivered."""
        deal = self._deal_of(one)
        if (one.plan.spans is None) != (deal.units is None):
            raise refuse_state("units", one.more["units"], "don't fit the plan's spans")
        workers = deal.worker_per_consumer
        made = max((one.delivered, *(k + 1 for k in one.ahead)))
        for worker, (batch, done) in self._lanes_of(one, deal).items():
            if batch > -(-max(0, made - worker) // workers):
                raise refuse_state("batch", batch, f"is more than worker {worker} has delivered")
            if done.left and not batch:
                raise refuse_state("left", done.left, "are items of no batch")

    def _deal_of(self, one: Saved) -> ShardDeal:
        workers = integer(one.more, "worker_per_consumer", 1, 2**20)
        units = one.more["units"]
        return replace(
            self.deal,
            nb_consumer=one.plan.nb_consumer,
            worker_per_consumer=workers,
            units=None if units is None else _read_units(units, self.deal.nb_shards),
        )

    def _lanes_of(self, one: Saved, deal: ShardDeal) -> dict[int, tuple[int, Done]]:
        """Of each worker that has told: batches that it has made, and what has become of it."""
        lanes = one.more["lanes"]
        names = {str(worker): worker for worker in range(deal.worker_per_consumer)}
        if not isinstance(lanes, Mapping) or not lanes.keys() <= names.keys():
            raise refuse_state("lanes", lanes, f"has keys other than {list(names)}")
        found = {}
        for name, lane in lanes.items():
            if not isinstance(lane, Mapping) or lane.keys() != _LANE_FIELDS:
                raise refuse_state("lanes", lane, f"do not have the fields {sorted(_LANE_FIELDS)}")
            units = deal.lane(one.epoch, one.consumer, names[name])
            lengths: Any = lane["lengths"]
            if (
                not isinstance(lengths, (list, tuple))
                or len(lengths) > len(units)
                or not all(type(size) is int and 0 <= size < _UNBOUND for size in lengths)
            ):
                raise refuse_state("lengths", lengths, f"are no lengths of {len(units)} shards")
            left = integer(lane, "left", 0, _UNBOUND)
            if len(lengths) == len(units) and left > sum(lengths):
                raise refuse_state("left", left, "is more than there was")
            if sum(lengths) > left + (deal.buffer if deal.shuffle else 0):
                raise refuse_state("lengths", lengths, f"are more than {left} items need")
            batch = integer(lane, "batch", 0, _UNBOUND)
            found[names[name]] = batch, Done(left, tuple(lengths))
        return found


def text_of_units(units: tuple[Unit, ...] | None) -> str:
    """Units as a plan holds them; empty: all shards."""
    return "" if units is None else json.dumps(_written(units))


def units_of_text(text: str) -> tuple[Unit, ...] | None:
    """The opposite."""
    if not text:
        return None
    return tuple(
        Unit(shard, tuple((start, stop) for start, stop in ranges))
        for shard, ranges in json.loads(text)
    )


def _written(units: tuple[Unit, ...]) -> JSON:
    return [[unit.shard, [[start, stop] for start, stop in unit.ranges]] for unit in units]


def _read_units(said: Any, nb_shards: int) -> tuple[Unit, ...]:
    """Raises `StateError` unless they are units of these shards."""
    problem = refuse_state("units", said, "are no parts of the shards")
    if not isinstance(said, (list, tuple)):
        raise problem
    units = []
    for one in said:
        if not isinstance(one, (list, tuple)) or len(one) != 2 or type(one[0]) is not int:
            raise problem
        shard, ranges = one
        if not 0 <= shard < nb_shards or not isinstance(ranges, (list, tuple)) or not ranges:
            raise problem
        end: int | None = -1
        checked = []
        for span in ranges:
            if not isinstance(span, (list, tuple)) or len(span) != 2 or end is None:
                raise problem
            start, stop = span
            if type(start) is not int or not end < start < _UNBOUND:
                raise problem
            if stop is not None and (type(stop) is not int or not start < stop < _UNBOUND):
                raise problem
            checked.append((start, stop))
            end = stop
        units.append(Unit(shard, tuple(checked)))
    return tuple(units)
