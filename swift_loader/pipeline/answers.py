"""Which slot each order of a channel was given, and what a worker's answer to it means.

Role: part of whoever orders over a `Channel`: the training process, and a worker that is fed by a
dispatching process.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from swift_loader.pipeline.link import MadeBatch, NoMore, NotMade
from swift_loader.transport.channel import Channel
from swift_loader.transport.messages import Exhausted, Failed, Made, Skipped
from swift_loader.transport.slots import LeasedSlots, OnMap, skeleton_of

__all__ = ["Answer", "OrderedSlots"]

Answer = Made | Failed | Skipped | Exhausted


class SlotParcel:
    """A batch in a slot."""

    __slots__ = ("_made", "_slot", "_slots", "nbytes")

    def __init__(self, slots: LeasedSlots, slot: int, made: Made) -> None:
        self._slots = slots
        self._slot = slot
        self._made = made
        self.nbytes = made.used_bytes

    def open(self) -> tuple[bytes, NDArray[np.uint8]]:
        made = self._made
        base = self._slots.lease(self._slot, made.used_bytes)
        return skeleton_of(base, made.skeleton, made.skeleton_bytes), base

    def discard(self) -> None:
        self._slots.give_back(self._slot)


class OrderedSlots:
    """The slots of one worker, by the tickets of unanswered orders. See `LeasedSlots`."""

    def __init__(self, max_kept: int, on_map: OnMap | None = None) -> None:
        self._slots = LeasedSlots(max_kept, on_map)
        self._slot_of: dict[int, int] = {}

    def take(self, ticket: int) -> int:
        """A slot for the answer to this order."""
        slot = self._slot_of[ticket] = self._slots.take()
        return slot

    def owes(self, ticket: int) -> bool:
        """Whether the order has no answer yet."""
        return ticket in self._slot_of

    def event(self, answer: Answer, channel: Channel) -> MadeBatch | NotMade | NoMore:
        """What `answer`, which came by `channel`, means to the pipeline."""
        slot = self._slot_of.pop(answer.ticket)
        if type(answer) is Made:
            if answer.slot_bytes:
                self._slots.replace(slot, channel.take_fd(), answer.slot_bytes)
            return MadeBatch(
                answer.ticket,
                answer.nb_samples,
                answer.times,
                SlotParcel(self._slots, slot, answer),
                answer.bad,
                answer.state,
                answer.made_at_s,
            )
        self._slots.give_back(slot)
        if isinstance(answer, Exhausted):
            return NoMore(answer.ticket, answer.state)
        return NotMade(answer.ticket, answer.report if isinstance(answer, Failed) else None)
