"""An order that counts how far its batches were asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from swift_loader.order.order import Order
from swift_loader.order.part import EpochPart, Number, Taken
from swift_loader.order.state import State
from swift_loader.plan import Plan

__all__ = ["CountedOrder"]


class CountedOrder(Order):
    """`inner`, as it is. `nb_asked`: of one part, with the time that it had no more."""

    def __init__(self, inner: Order) -> None:
        self.inner = inner
        self.nb_asked = 0

    @property
    def known_ahead(self) -> bool:
        return self.inner.known_ahead

    @property
    def one_stands_for_all(self) -> bool:
        return self.inner.one_stands_for_all

    @property
    def nb_shards(self) -> int:
        return self.inner.nb_shards

    @property
    def draws(self) -> bool:
        return self.inner.draws

    def plans(self) -> dict[int, Plan]:
        return self.inner.plans()

    def part(self, epoch: int) -> EpochPart:
        return self.inner.part(epoch)

    def begin(self, epoch: int) -> Taken:
        return self.inner.begin(epoch)

    def batches(self, part: EpochPart) -> Iterator[tuple[Number, bytes]]:
        for one in self.inner.batches(part):
            self.nb_asked += 1
            yield one
        self.nb_asked += 1

    def samples(self, number: Number, details: bytes) -> list[Any]:
        return self.inner.samples(number, details)

    def checksum(self, number: Number) -> int | None:
        return self.inner.checksum(number)

    def capture(self, taken: Taken) -> dict[str, Any]:
        return self.inner.capture(taken)

    def resumed(self, state: State) -> tuple[Order, int]:
        return self.inner.resumed(state)
