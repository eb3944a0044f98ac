"""Mixture plans for tests, and the run of all consumers of one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from swift_loader.loader.mixtures import plan_of_mixture
from swift_loader.loader.options import Config
from swift_loader.order.order import Order
from swift_loader.order.planned import PlannedOrder
from swift_loader.plan import Plan
from swift_loader.sources.mixture import Mixture, Source


def plan_of(
    lengths: Mapping[str, int],
    *,
    nb_consumer: int = 1,
    batch_size: int = 4,
    tail: str = "balanced",
    shuffle: bool = True,
    batch_sizes: Mapping[str, int] | None = None,
    nearby_shuffle: int = 0,
    **mixture: Any,
) -> Plan:
    """The plan of a mixture of so long sources; the other options are those of `Mixture`."""
    sizes = batch_sizes or {}
    sources = {
        name: Source(range(length), batch_size=sizes.get(name)) for name, length in lengths.items()
    }
    mixing = Mixture(sources, **mixture).mixing
    config = Config.of(
        {
            "dataset_class": range(1),
            "nb_consumer": nb_consumer,
            "batch_size": batch_size,
            "tail": tail,
            "shuffle": shuffle,
            "nearby_shuffle": nearby_shuffle,
        }
    )
    return plan_of_mixture(config, mixing, tuple(lengths.values()), 7)


def told(plan: Plan, indices: Sequence[int]) -> list[tuple[str, int]]:
    """``(source, its sample)`` of each sample index."""
    mixture = plan.mixture
    assert mixture is not None
    found = []
    for index in indices:
        source = max(s for s, start in enumerate(mixture.offsets[:-1]) if start <= index)
        found.append((mixture.names[source], index - mixture.offsets[source]))
    return found


class Run:
    """All consumers of a run, epoch after epoch; `seen`: what each step of theirs gave."""

    def __init__(self, plan: Plan) -> None:
        self.seen: list[tuple[str, int]] = []
        self._begin([PlannedOrder(plan, consumer) for consumer in range(plan.nb_consumer)], 0)

    def _begin(self, orders: Sequence[Order], epoch: int) -> None:
        self.orders, self.epoch = list(orders), epoch
        self.taken = [order.begin(epoch) for order in self.orders]
        self.numbers = [
            list(order.batches(taken.part))
            for order, taken in zip(self.orders, self.taken, strict=True)
        ]

    @property
    def plan(self) -> Plan:
        order = self.orders[0]
        assert isinstance(order, PlannedOrder)
        return order.plan_of(self.taken[0].part)

    def take(self, consumer: int, at: int = 0) -> list[tuple[str, int]] | None:
        """A consumer's next batch, or the one `at` places further; None: its epoch is over."""
        numbers = self.numbers[consumer]
        if not numbers:
            return None
        number, details = numbers.pop(min(at, len(numbers) - 1))
        order = self.orders[consumer]
        got = told(self.plan, order.samples(number, details))
        self.taken[consumer].add(number.k)
        self.seen += got
        return got

    def step(self) -> bool:
        """All consumers take a batch; False at the end of an epoch, and the next one begins."""
        got = [self.take(consumer) for consumer in range(len(self.orders))]
        if all(batch is None for batch in got):
            self._begin(self.orders, self.epoch + 1)
            return False
        return True

    def states(self) -> list[dict[str, Any]]:
        pairs = zip(self.orders, self.taken, strict=True)
        found: list[dict[str, Any]] = json.loads(
            json.dumps([order.capture(taken) for order, taken in pairs])
        )
        return found

    def resume(self, plan: Plan, *, by_one: bool = True) -> tuple[str, ...]:
        """Go on as the consumers of `plan`; what was said of it."""
        states = self.states()
        state = states[0] if by_one else states
        orders = [
            PlannedOrder(plan, consumer).resumed(state)[0] for consumer in range(plan.nb_consumer)
        ]
        epochs = {
            PlannedOrder(plan, consumer).resumed(state)[1] for consumer in range(plan.nb_consumer)
        }
        [epoch] = epochs
        self._begin(orders, epoch)
        first = orders[0]
        assert isinstance(first, PlannedOrder)
        assert first.rest is not None
        return first.rest.notes
