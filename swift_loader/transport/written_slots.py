"""Slots as the worker sees them, which makes their memory and writes batches into it."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from swift_loader.batch.arena import Arena, SlotTooSmall, aligned_bytes
from swift_loader.transport.memory import create_region, map_shared, round_up

__all__ = ["INLINE_SKELETON_BYTES", "WrittenSlots"]

INLINE_SKELETON_BYTES = 1 << 14  # a longer one lies in the slot: sockets are small

_SLACK = 8  # a new slot is an eighth larger than needed: variable batches settle soon
_SMALLEST_BYTES = 1 << 14


class WrittenSlots:
    """One arena a slot, grown by being replaced."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._arenas: dict[int, Arena] = {}
        self._grown: tuple[int, int, int] | None = None  # slot, descriptor, bytes: to be sent
        self._largest_bytes = 0

    def arena(self, slot: int) -> Arena:
        """The slot's arena, emptied. A slot that was never used gets the size that others need."""
        arena = self._arenas.get(slot)
        if arena is None:
            return self.grow(slot, self._largest_bytes) if self._largest_bytes else Arena(None)
        arena.reset()
        return arena

    def grow(self, slot: int, needed_bytes: int) -> Arena:
        """A new, empty region for `slot` with room for `needed_bytes`.

        The region before it stays mapped as long as something of the batch lies in it.
        """
        self.sent()
        nbytes = round_up(max(needed_bytes + needed_bytes // _SLACK, _SMALLEST_BYTES))
        fd = create_region(nbytes, self._label)
        self._grown = slot, fd, nbytes
        arena = self._arenas[slot] = Arena(memoryview(map_shared(fd, nbytes)))
        self._largest_bytes = max(self._largest_bytes, needed_bytes)
        return arena

    def store(
        self, slot: int, arena: Arena, put: Callable[[Arena], bytes]
    ) -> tuple[int, int, bytes]:
        """Put a batch into `arena`, the slot's, or into a larger one that takes its place.

        `put` writes it and returns its skeleton; it is called again where there was no room.
        Returns ``(used bytes, skeleton bytes in the slot, skeleton)``. Raises what `put` raises,
        but never `SlotTooSmall`.
        """
        while True:
            try:
                skeleton = put(arena)
                if len(skeleton) <= INLINE_SKELETON_BYTES:
                    return arena.used_bytes, 0, skeleton
                # Whole pieces, so that the skeleton ends where the used bytes do.
                home = arena.empty((aligned_bytes(len(skeleton)),), torch.uint8)
                if home is None:
                    raise SlotTooSmall(arena.wanted_bytes)
                home.numpy()[-len(skeleton) :] = np.frombuffer(skeleton, np.uint8)
                return arena.used_bytes, len(skeleton), b""
            except SlotTooSmall as short:
                arena = self.grow(slot, short.needed_bytes)

    def written(self, slot: int, used_bytes: int) -> NDArray[np.uint8]:
        """The used bytes of a slot, for who sends them another way than by its region."""
        if not used_bytes:
            return np.empty(0, np.uint8)
        return self._arenas[slot].array_at(0, (used_bytes,), np.dtype(np.uint8))

    def grown(self) -> tuple[int, int] | None:
        """Descriptor and bytes of the region that the other end does not know yet."""
        return self._grown[1:] if self._grown else None

    def sent(self) -> None:
        """The other end has the descriptor now."""
        if self._grown is not None:
            os.close(self._grown[1])
            self._grown = None

    def abandon(self) -> None:
        """The batch was not made: a region that the other end never saw is of no use."""
        if self._grown is not None:
            del self._arenas[self._grown[0]]
            self.sent()
