"""The loader's own order, which workers know from the plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from swift_loader.order.order import Order
from swift_loader.order.part import EpochPart, Number, Taken
from swift_loader.order.resume import Resume, resume
from swift_loader.order.state import Saved, State
from swift_loader.plan import Plan

__all__ = ["PlannedOrder"]

_PLAN, _RESUMED_PLAN = 0, 1  # plan ids: the loader's own, and that of a resumed epoch


@dataclass(frozen=True)
class PlannedOrder(Order):
    """The loader's own order, which workers know from the plan."""

    plan: Plan
    consumer: int
    rest: Resume | None = None  # what a loaded state left of its epoch

    def plans(self) -> dict[int, Plan]:
        plans = {_PLAN: self.plan}
        if self.rest is not None:
            plans[_RESUMED_PLAN] = self.rest.plan
        return plans

    def part(self, epoch: int) -> EpochPart:
        rest = self.rest
        if rest is not None and rest.epoch == epoch:
            count = rest.plan.nb_batches(self.consumer)
            return EpochPart(_RESUMED_PLAN, epoch, count, rest.first_batch, frozenset(rest.ahead))
        return EpochPart(_PLAN, epoch, self.plan.nb_batches(self.consumer))

    def batches(self, part: EpochPart) -> Iterator[tuple[Number, bytes]]:
        return ((number, b"") for number in part.numbers())

    def samples(self, number: Number, details: bytes) -> list[Any]:
        plan = self.plans()[number.plan_id]
        indices: list[Any] = plan.batch(number.epoch, self.consumer, number.k).tolist()
        return indices

    def capture(self, taken: Taken) -> dict[str, Any]:
        part = taken.part
        plan, ahead = self.plan_of(part), tuple(sorted(taken.beyond))
        return Saved("plan", plan, part.epoch, self.consumer, taken.first, ahead).written()

    def resumed(self, state: State) -> tuple[Order, int]:
        rest = resume(state, self.plan, self.consumer)
        return replace(self, plan=rest.later or self.plan, rest=rest), rest.epoch

    def samples_by_source(self, number: Number, count: int) -> list[int]:
        """Of a mixture: how many samples of each source are in `count` batches from `number` on."""
        plan, k = self.plans()[number.plan_id], number.k
        return plan.samples_by_source(number.epoch, self.consumer, k, k + count)

    def plan_of(self, part: EpochPart) -> Plan:
        """The plan that the numbers of `part` are of."""
        return self.plans()[part.plan_id]

    def size_of(self, epoch: int, first_batch: int) -> tuple[int, int]:
        """``(batches, samples)`` of an epoch from batch `first_batch` on."""
        part = self.part(epoch)
        left = range(max(first_batch, part.first), part.count)
        nb_batches = len(left) - sum(1 for k in part.done if k in left)
        if not nb_batches:
            return 0, 0
        plan = self.plan_of(part)
        if plan.mixture is not None and max(plan.mixture.batch_sizes) > 1:
            wanted = (k for k in left if k not in part.done)
            return nb_batches, sum(len(plan.batch(epoch, self.consumer, k)) for k in wanted)
        last = plan.batch(epoch, self.consumer, part.count - 1)
        return nb_batches, (nb_batches - 1) * plan.batch_size + len(last)
