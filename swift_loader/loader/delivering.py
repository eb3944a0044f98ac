"""What a loader asks of whatever delivers its batches."""

from __future__ import annotations

from typing import Protocol

from swift_loader.order.order import Order
from swift_loader.order.part import EpochPart, Number, ShardsOver
from swift_loader.pipeline.item import Item
from swift_loader.plan import Plan

__all__ = ["Delivering"]


class Delivering(Protocol):
    """A `Pipeline`, `InProcess`, or an end of a group of ranks (`swift_loader.sharing.group`).

    Where one says no more: it has no batch ready, no shards and no threads.
    """

    @property
    def depth(self) -> int:
        """Batches that are ready."""
        return 0

    @property
    def next_is_ready(self) -> bool:
        """Whether `next` would not wait."""
        return False

    def set_plan(self, plan_id: int, plan: Plan) -> None:
        """Numbers with this `plan_id` mean this plan."""

    def prefetch(self, part: EpochPart, order: Order) -> None:
        """Begin to make the batches of `part`, which will begin later."""

    def begin(self, part: EpochPart, order: Order) -> None:
        """Deliver `part` from now on."""

    def next(self, part: EpochPart) -> tuple[Number, Item] | None:
        """The next batch of `part`, or an error in its place; None at the end."""

    def loop_waited(self, waited_s: float, now_s: float) -> None:
        """The training loop has waited for a batch."""

    def shard_ends(self, epoch: int) -> dict[int, bytes]:
        """How a stream stands at the end of its shards, by worker."""
        return {}

    def shards_over(self, epoch: int) -> ShardsOver | None:
        """The shards that have ended in this epoch; None where there are none."""
        return None

    def in_own_thread(self) -> bool:
        """Whether it is one of its own threads that asks."""
        return False

    def close(self) -> None:
        """End it."""
