"""What the rest of the loader asks of an order: what a consumer gets, and when.

Three kinds stand beside this file: `planned` (the plan), `sampled` (the user's sampler) and
`stream` (shards).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from swift_loader.order.part import EpochPart, Number, Taken
from swift_loader.plan import Plan
from swift_loader.plan import saved_seed as seed_of_plan

__all__ = ["Order", "State", "saved_seed"]

State = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class Order(Protocol):
    """What a loader and its pipeline ask of an order."""

    @property
    def worker_of(self) -> Callable[[Number], int] | None:
        """Which worker must make a number; None: any can."""

    def plans(self) -> dict[int, Plan]:
        """What the plan ids of its parts mean to workers."""

    def part(self, epoch: int) -> EpochPart:
        """What the consumer takes of an epoch."""

    def following(self, epoch: int) -> EpochPart:
        """The part to be prefetched when all before it is given out; empty: not yet."""

    def numbers(self, part: EpochPart) -> Iterator[Number]:
        """The numbers of a part, in order."""

    def indices(self, number: Number) -> bytes:
        """Sample indices of an outstanding number, int64; empty where the plan tells."""

    def delivered(self, number: Number) -> None:
        """The training loop has it: its indices will not be asked for again."""

    def exhausted(self, number: Number) -> None:
        """There is no such batch: a stream's shard has ended before it."""

    def capture(
        self, part: EpochPart, taken: Taken, streams: Mapping[int, bytes]
    ) -> dict[str, Any]:
        """The state of a consumer that has `taken` so much of `part`."""

    def resumed(self, state: State) -> tuple[Order, int]:
        """The order that goes on where `state` stands, and its epoch. Raises `StateError`."""


def saved_seed(state: State) -> int:
    """The seed of the run that `state` is of. Raises `StateError`."""
    one = state[0] if isinstance(state, Sequence) and state else state
    if isinstance(one, Mapping) and (one.get("sampler") is True or one.get("stream") is True):
        return int(one["seed"])
    return seed_of_plan(state)
