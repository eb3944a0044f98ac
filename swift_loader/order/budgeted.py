"""The order of batches that are bounded by tokens. Pure.

The training process knows the lengths, and sends each worker the samples of its batch with the
batch's number. What is left of an epoch is known as whole batches and parts of batches, so it can
be dealt out to any number of consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swift_loader.errors import StateError
from swift_loader.order.keys import decode_keys, encode_keys
from swift_loader.order.order import Order
from swift_loader.order.part import EpochPart, Number, Taken
from swift_loader.order.resume import as_if, complete, untouched
from swift_loader.order.state import Saved, State, check_same_run, integer, read, refuse_state
from swift_loader.plan import JSON, Plan
from swift_loader.plan.budget import BudgetTable
from swift_loader.plan.deal import Deal, Part
from swift_loader.plan.keys import key64
from swift_loader.plan.partition import Span

__all__ = ["BudgetedOrder"]

_PLAN, _RESUMED_PLAN = 0, 1
_UNBOUND = 2**62  # positions of a plan that is asked for seeds alone
_REST = 26  # purpose of a key
_FIELD = "budget"
_DEAL = 2  # version of how batches are dealt; before, no consumer took steps over from others
_KEPT = 4
_SEEDS = Plan(_UNBOUND, 1, 1, False, 0, 0)


@dataclass(frozen=True)
class _Rest:
    """What a loaded state left of its epoch."""

    epoch: int
    deal: Deal
    seeds: Plan
    first: int = 0
    ahead: frozenset[int] = frozenset()


@dataclass(frozen=True)
class BudgetedOrder(Order):
    """See the module's text. `seeds`: a plan for seeds alone."""

    table: BudgetTable
    seeds: Plan
    consumer: int
    shuffle: bool
    rest: _Rest | None = None

    @classmethod
    def of(
        cls, table: BudgetTable, nb_consumer: int, consumer: int, shuffle: bool, seed: int
    ) -> BudgetedOrder:
        """Of a whole run."""
        seeds = Plan(_UNBOUND, 1, nb_consumer, False, 0, seed)
        return cls(table, seeds, consumer, shuffle)

    def plans(self) -> dict[int, Plan]:
        plans = {_PLAN: self.seeds}
        if self.rest is not None:
            plans[_RESUMED_PLAN] = self.rest.seeds
        return plans

    def part(self, epoch: int) -> EpochPart:
        rest = self.rest
        if rest is not None and rest.epoch == epoch:
            count = rest.deal.nb_steps(self.consumer)
            return EpochPart(_RESUMED_PLAN, epoch, count, min(rest.first, count), rest.ahead)
        return EpochPart(_PLAN, epoch, self._whole(epoch).nb_steps(self.consumer))

    def batches(self, part: EpochPart) -> Iterator[tuple[Number, bytes]]:
        deal = self._deal_of(part)
        for number in part.numbers():
            yield number, encode_keys(self._samples(deal.part(self.consumer, number.k), part.epoch))

    def samples(self, number: Number, details: bytes) -> list[Any]:
        return list(decode_keys(details)[0])

    def capture(self, taken: Taken) -> dict[str, Any]:
        part = taken.part
        deal = self._deal_of(part)
        more: dict[str, JSON] = {
            _FIELD: {
                **self._facts,
                "spans": [[start, stop] for start, stop in deal.spans],
                "parts": [list(each) for each in deal.parts],
                "deal": _DEAL,
            }
        }
        plan, ahead = self.plans()[part.plan_id], tuple(sorted(taken.beyond))
        return Saved("budget", plan, part.epoch, self.consumer, taken.first, ahead, more).written()

    def resumed(self, state: State) -> tuple[Order, int]:
        saved = read(state, "budget", (_FIELD,))
        alone = isinstance(state, Mapping)
        nb_consumer = saved[0].plan.nb_consumer
        everyone = (
            [as_if(saved[0], number) for number in range(nb_consumer)] if alone else complete(saved)
        )
        begun = min(everyone, key=lambda each: (each.epoch, untouched(each)))
        for each in everyone:
            self._check_same(each)
            self._check_steps(each)
        if all(untouched(each) and each.epoch == begun.epoch for each in everyone):
            return replace(self, rest=None), begun.epoch
        deal = self._read_deal(begun)
        same = nb_consumer == self.seeds.nb_consumer
        stands_for_others = alone and not (same and saved[0].consumer == self.consumer)
        if stands_for_others and saved[0].ahead and nb_consumer > 1:
            raise StateError(
                f"the saved consumer was given batches {list(saved[0].ahead)} out of order, so "
                "its state can't stand for the others; give the list of the states of all"
            )
        if same:
            own = everyone[self.consumer]
            if own.epoch > begun.epoch:
                return replace(self, rest=None), own.epoch
            rest = _Rest(own.epoch, deal, own.plan, own.delivered, frozenset(own.ahead))
            return replace(self, rest=rest), own.epoch
        taken = [
            (each.consumer, deal.nb_steps(each.consumer), ())
            if each.epoch > begun.epoch
            else (each.consumer, each.delivered, each.ahead)
            for each in everyone
        ]
        left = deal.without(taken).among(self.seeds.nb_consumer)
        bounds = (bound for span in left.spans for bound in span)
        key = key64(_REST, *bounds, *(value for part in left.parts for value in part))
        seeds = replace(self.seeds, spans=((1 + key % 2**40, _UNBOUND),))
        return replace(self, rest=_Rest(begun.epoch, left, seeds)), begun.epoch

    def steps_of_all(self) -> tuple[int, int]:
        """The most and the fewest steps that a consumer makes in an epoch."""
        deal = self._whole(0)  # sizes come in another order in each, their number is the same
        return deal.nb_steps(0), deal.nb_steps(deal.nb_consumer - 1)

    @property
    def facts(self) -> dict[str, JSON]:
        """What all consumers must agree on."""
        return {f"batch_tokens: {name}": value for name, value in self._facts.items()}

    @cached_property
    def _facts(self) -> dict[str, JSON]:
        table = self.table
        return {
            "tokens": table.tokens,
            "cost": table.cost,
            "nb_samples": len(table.lengths),
            "lengths": table.digest,
            "shuffle": self.shuffle,
        }

    def _samples(self, part: Part, epoch: int) -> list[int]:
        batch = self._batch_at(part.position, epoch)
        samples = self.table.samples(batch, self.shuffle, self.seeds.seed, epoch)
        found: list[int] = samples[part.start : part.stop].tolist()
        return found

    def _batch_at(self, position: int, epoch: int) -> int:
        seed = self.seeds.seed
        return int(self.table.batches(position, position + 1, self.shuffle, seed, epoch)[0])

    def _deal_of(self, part: EpochPart) -> Deal:
        if part.plan_id == _RESUMED_PLAN:
            assert self.rest is not None
            return self.rest.deal
        return self._whole(part.epoch)

    def _whole(self, epoch: int, nb_consumer: int | None = None) -> Deal:
        spans = ((0, self.table.nb_batches),) if self.table.nb_batches else ()
        return self._deal(spans, (), epoch, nb_consumer or self.seeds.nb_consumer)

    @cached_property
    def _deal(self) -> Callable[[tuple[Span, ...], tuple[Part, ...], int, int], Deal]:
        """Keeps some: the states of all consumers are mostly of the same one."""
        table, shuffle, seed = self.table, self.shuffle, self.seeds.seed

        @lru_cache(_KEPT)
        def deal(
            spans: tuple[Span, ...], parts: tuple[Part, ...], epoch: int, nb_consumer: int
        ) -> Deal:
            def sizes(start: int, stop: int) -> NDArray[np.int64]:
                return table.sizes(start, stop, shuffle, seed, epoch)

            return Deal(spans, parts, nb_consumer, sizes, table.nb_batches == len(table.lengths))

        return deal

    def _check_same(self, begun: Saved) -> None:
        said = begun.more[_FIELD]
        names = {*self._facts, "spans", "parts", "deal"}
        if not isinstance(said, Mapping) or set(said) | {"deal"} != names:
            raise refuse_state(_FIELD, said, f"does not have the fields {sorted(names)}")
        facts = {**self._facts, "seed": self.seeds.seed}
        was = {**said, "seed": begun.plan.seed}
        if replace(begun.plan, spans=None, nb_consumer=1, seed=0) != _SEEDS:
            raise refuse_state("plan", begun.plan, "is none of a loader with batch_tokens")
        check_same_run("another run of batch_tokens", was, facts)

    def _check_steps(self, one: Saved) -> None:
        """Raises `StateError` where more was delivered than there was, or other steps."""
        deal = self._read_deal(one)
        said: Any = one.more[_FIELD]
        version = integer(said, "deal", 2, _DEAL) if "deal" in said else 1
        if version < _DEAL and deal.takes_over and (one.delivered or one.ahead):
            raise StateError(
                "batch_tokens: the batches of this state's epoch are dealt in another way "
                "since, in equal steps: finish the epoch with the version that saved it, or start "
                "afresh without the state"
            )
        if one.plan.spans is None:
            whole = self._whole(one.epoch, one.plan.nb_consumer)
            if (deal.spans, deal.parts) != (whole.spans, whole.parts):
                raise refuse_state("spans", one.more[_FIELD], "are not all batches of the epoch")
        most = deal.nb_steps(one.consumer)
        if one.delivered > most or any(k >= most for k in one.ahead):
            raise refuse_state("delivered", one.delivered, f"is more than {most} steps")

    def _read_deal(self, begun: Saved) -> Deal:
        said: Any = begun.more[_FIELD]
        end, spans = 0, []
        for span in _lists_of(said, "spans", 2):
            if not end <= span[0] < span[1] <= self.table.nb_batches:
                raise refuse_state("spans", said["spans"], "are no ascending spans of batches")
            end = span[1]
            spans.append((span[0], span[1]))
        parts = []
        for one in _lists_of(said, "parts", 3):
            if not 0 <= one[0] < self.table.nb_batches:
                raise refuse_state("parts", said["parts"], "are no parts of batches")
            size = self.table.size(self._batch_at(one[0], begun.epoch))
            if not 0 <= one[1] < one[2] <= size:
                raise refuse_state("parts", said["parts"], "are no parts of batches")
            parts.append(Part(*one))
        return self._deal(tuple(spans), tuple(parts), begun.epoch, begun.plan.nb_consumer)


def _lists_of(said: Mapping[str, Any], name: str, length: int) -> list[list[int]]:
    """Lists of so many whole numbers. Raises `StateError`."""
    found = said[name]
    if not isinstance(found, (list, tuple)) or not all(
        isinstance(one, (list, tuple))
        and len(one) == length
        and all(type(value) is int for value in one)
        for one in found
    ):
        raise refuse_state(name, found, f"are no lists of {length} whole numbers")
    return [list(one) for one in found]
