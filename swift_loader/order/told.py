"""An order whose data set is told something from some epoch on: `SwiftLoader.call_dataset`. Pure.

It stands around another order. A number's plan id says, beside the inner order's plan, how many of
the calls come before it; so batches made ahead without a call are other batches, and a worker knows
from the plan alone what it must have called. Nothing else of the pipeline knows of calls.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from swift_loader.batch.plain import from_plain, to_plain
from swift_loader.errors import ConfigError, StateError
from swift_loader.order.order import Order
from swift_loader.order.part import EpochPart, Number, Taken
from swift_loader.order.planned import PlannedOrder
from swift_loader.order.state import State
from swift_loader.plan import Plan

__all__ = [
    "ToldOrder",
    "call_as_text",
    "calls_of",
    "has_calls",
    "inner_number",
    "inner_of",
    "inner_part",
    "notes_of",
    "resumed",
    "text_as_call",
    "told",
    "with_call",
    "without_calls",
]

_IDS = 2  # plan ids of the inner order
_FIELD = "calls"


def inner_of(order: Order) -> Order:
    """The order that says which samples come."""
    return order.inner if isinstance(order, ToldOrder) else order


def inner_number(number: Number) -> Number:
    """The number as the inner order knows it."""
    return number._replace(plan_id=number.plan_id % _IDS)


def has_calls(order: Order) -> bool:
    """Whether the data set is told anything."""
    return isinstance(order, ToldOrder) and bool(order.calls)


def notes_of(order: Order) -> tuple[str, ...]:
    """What a loaded state has not as it is now, for a reader."""
    inner = inner_of(order)
    rest = inner.rest if isinstance(inner, PlannedOrder) else None
    return () if rest is None else rest.notes


def told(order: Order, calls: tuple[str, ...], *, ahead: bool = True) -> Order:
    """`order` with these calls; `order` itself where there is nothing to say."""
    return order if ahead and not calls else ToldOrder(order, calls, ahead=ahead)


def with_call(order: Order, call: str) -> Order:
    """The same and one call more, from the next iteration on."""
    if not isinstance(order, ToldOrder):
        return ToldOrder(order, (call,))
    return replace(order, calls=(*order.calls, call), before=None)


def resumed(
    order: Order, state: State, since: tuple[str, ...], *, ahead: bool = True
) -> tuple[Order, int]:
    """The order that goes on where `state` stands, and its epoch; `since` was asked for after it.

    Raises `StateError`.
    """
    inner = inner_of(order)
    if not isinstance(state, (list, tuple, Mapping)) or (
        ahead and not since and not calls_of(state)[0]
    ):
        return inner.resumed(state)  # which says what is wrong with what is no state
    return ToldOrder(inner, (), ahead=ahead).resumed_with(state, since)


def call_as_text(method: str, arguments: Sequence[Any]) -> str:
    """A call as a plan and a state hold it. Raises `ConfigError` for what is no plain data."""
    try:
        return json.dumps([method, [to_plain(one, "argument") for one in arguments]])
    except StateError as error:
        raise ConfigError(
            f"call_dataset({method!r}, ...): the call is kept in saved states, so arguments must "
            f"be plain data: {error}. Give the path of a file instead"
        ) from None


def text_as_call(text: str) -> tuple[str, list[Any]]:
    """The method and its arguments."""
    method, arguments = json.loads(text)
    return method, [from_plain(one, "argument") for one in arguments]


@dataclass(frozen=True, slots=True)
class _ToldPart(EpochPart):
    """A part under the plan id of a told plan; `inner`: as the inner order knows it."""

    inner: EpochPart | None = None


def inner_part(part: EpochPart) -> EpochPart:
    """The part as the inner order knows it."""
    if not isinstance(part, _ToldPart):
        return part
    assert part.inner is not None
    return part.inner


class _ToldTaken(Taken):
    """What was taken of such a part, and the same for the inner order, which knows it again."""

    def __init__(self, inner: Taken, part: EpochPart) -> None:
        super().__init__(part)
        self.inner = inner
        self.shards = inner.shards

    def add(self, k: int) -> None:
        super().add(k)
        self.inner.add(k)


@dataclass(frozen=True)
class ToldOrder(Order):
    """See the module's text.

    `calls`: all that were asked for. `before`: an epoch that was begun when there were fewer, and
    how many; from a saved state.
    """

    inner: Order
    calls: tuple[str, ...]
    before: tuple[int, int] | None = None
    ahead: bool = True  # False: no epoch is made before it is begun

    @property
    def known_ahead(self) -> bool:
        return self.ahead and self.inner.known_ahead

    @property
    def one_stands_for_all(self) -> bool:
        return self.inner.one_stands_for_all

    @property
    def draws(self) -> bool:
        return self.inner.draws

    @property
    def nb_shards(self) -> int:
        return self.inner.nb_shards

    def plans(self) -> dict[int, Plan]:
        counts = {len(self.calls)} | ({self.before[1]} if self.before else set())
        return {
            _IDS * count + plan_id: replace(plan, calls=self.calls[:count])
            for count in counts
            for plan_id, plan in self.inner.plans().items()
        }

    def part(self, epoch: int) -> EpochPart:
        return self._told_part(self.inner.part(epoch))

    def begin(self, epoch: int) -> Taken:
        inner = self.inner.begin(epoch)
        return _ToldTaken(inner, self._told_part(inner.part))

    def _told_part(self, part: EpochPart) -> EpochPart:
        before = self.before
        count = before[1] if before and before[0] == part.epoch else len(self.calls)
        own = {field.name: getattr(part, field.name) for field in fields(part)}
        return _ToldPart(**{**own, "plan_id": _IDS * count + part.plan_id, "inner": part})

    def batches(self, part: EpochPart) -> Iterator[tuple[Number, bytes]]:
        for number, details in self.inner.batches(inner_part(part)):
            yield number._replace(plan_id=part.plan_id), details

    def samples(self, number: Number, details: bytes) -> list[Any]:
        return self.inner.samples(inner_number(number), details)

    def checksum(self, number: Number) -> int | None:
        return self.inner.checksum(inner_number(number))

    def capture(self, taken: Taken) -> dict[str, Any]:
        count = taken.part.plan_id // _IDS
        inner = taken  # as it is, of an epoch that was begun before the first call
        if isinstance(taken, _ToldTaken):
            inner = taken.inner
        elif isinstance(taken.part, _ToldPart):  # nothing of it was begun
            inner = copy.copy(taken)
            inner.part = inner_part(taken.part)
        state = self.inner.capture(inner)
        return {**state, _FIELD: {"all": list(self.calls), "before": count}}

    def resumed(self, state: State) -> tuple[Order, int]:
        return self.resumed_with(state, ())

    def resumed_with(self, state: State, since: tuple[str, ...]) -> tuple[ToldOrder, int]:
        """The same, and after the state was loaded the calls `since` were asked for."""
        inner, epoch = self.inner.resumed(without_calls(state))
        calls, count = calls_of(state)
        before = None if since else (epoch, count)  # the next iteration is told of them
        return replace(self, inner=inner, calls=calls + since, before=before), epoch


def calls_of(state: State) -> tuple[tuple[str, ...], int]:
    """The calls in a state, and how many of them come before its epoch. Raises `StateError`."""
    states = [state] if isinstance(state, Mapping) else state
    found = [one.get(_FIELD) for one in states if isinstance(one, Mapping)]
    if not found or found[0] is None:
        return (), 0
    said = found[0]
    try:
        calls, before = tuple(said["all"]), said["before"]
        for call in calls:
            method, _ = text_as_call(call)
            if not isinstance(method, str) or not method.isidentifier():
                raise ValueError(method)
        if type(before) is not int or not 0 <= before <= len(calls):
            raise ValueError(before)
    except (KeyError, TypeError, ValueError, StateError) as error:
        raise StateError(
            f"the state is malformed: {_FIELD}={str(said)[:100]} are no calls of a data set "
            f"({error!r:.100}); give what state_dict() returned"
        ) from None
    if any(other != said for other in found):
        raise StateError("the states differ in what the data set was told; give those of one run")
    return calls, before


def without_calls(state: State) -> State:
    """The state as the inner order knows it."""
    if isinstance(state, Mapping):
        return {name: value for name, value in state.items() if name != _FIELD}
    return [
        {name: value for name, value in one.items() if name != _FIELD}
        for one in state
        if isinstance(one, Mapping)
    ]
