"""What the rest of the loader asks of an order: what a consumer gets, and when.

Three kinds stand beside this file: `planned` (the plan), `sampled` (the user's sampler) and
`stream` (shards). An order is a value. Where the training loop stands is in a `Taken`; which
numbers are given out, and which shards have ended, is known to the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from swift_loader.order.part import EpochPart, Number, Taken
from swift_loader.order.state import State
from swift_loader.plan import Plan

__all__ = ["Order"]


class Order(Protocol):
    """What a loader and its pipeline ask of an order.

    Where an order says no more: any worker makes any batch, ahead of the training loop too.
    """

    @property
    def known_ahead(self) -> bool:
        """Whether an epoch may be made before the training loop begins it."""
        return True

    @property
    def one_stands_for_all(self) -> bool:
        """Whether the state of one consumer tells what all have had, if they made equal steps."""
        return True

    @property
    def draws(self) -> bool:
        """Whether asking for its batches changes something: a sampler of the user's."""
        return False

    @property
    def nb_shards(self) -> int:
        """Shards of an epoch: batch ``k`` can only be made by worker ``k % nb_shards``.

        0: any worker makes any batch. A shard ends where its worker says so.
        """
        return 0

    def plans(self) -> dict[int, Plan]:
        """What the plan ids of its numbers mean to workers."""

    def part(self, epoch: int) -> EpochPart:
        """What the consumer takes of an epoch."""

    def begin(self, epoch: int) -> Taken:
        """The training loop begins an epoch: nothing of its part is taken yet."""
        return Taken(self.part(epoch))

    def batches(self, part: EpochPart) -> Iterator[tuple[Number, bytes]]:
        """The numbers of a part, in order, each with what a worker must know besides.

        These details are empty where the number and its plan say everything.
        """

    def samples(self, number: Number, details: bytes) -> list[Any]:
        """The keys of a batch, each the argument of ``dataset[key]``; none in a stream."""

    def checksum(self, number: Number) -> int | None:
        """Of the keys up to this batch, of a sampler; None: the number says which they are."""
        return None

    def capture(self, taken: Taken) -> dict[str, Any]:
        """The state of a consumer whose training loop has `taken` so much."""

    def resumed(self, state: State) -> tuple[Order, int]:
        """The order that goes on where `state` stands, and its epoch. Raises `StateError`."""
