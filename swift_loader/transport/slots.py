"""Slots: the regions of shared memory that hold encoded batches, as the training process sees them.

The training process owns the free list and names a slot in every `Make`; the worker owns the
memory (`written_slots`): it makes a slot's region when it first needs one, or a larger one, and
sends the descriptor with the batch. So releasing costs no message and growing costs no handshake.

A delivered batch holds a *lease*: the fresh `numpy` array over the mapping that every view of the
batch has as its base. When the last view is gone the array is, and its weak reference puts itself
on a deque: that is all that happens at an arbitrary moment in an arbitrary thread.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swift_loader.transport.memory import Mapping, map_shared

__all__ = ["LeasedSlots", "OnMap", "skeleton_of"]

OnMap = Callable[[Mapping, int], None]


class _LeaseRef(weakref.ref[Any]):
    """A weak reference to the base array of a delivered batch, with the slot that it lies in."""

    __slots__ = ("slot",)
    slot: int


class LeasedSlots:
    """The training process's end: mappings, free list and leases of one worker's slots.

    `max_kept` bounds the slots that delivered batches may pin at once; a batch past it is copied
    out, so that keeping every batch works and shared memory stays bounded. `on_map` is told of
    every new mapping and its descriptor (to be duplicated where it is wanted for longer). Any
    thread may call.
    """

    def __init__(self, max_kept: int, on_map: OnMap | None = None) -> None:
        self._max_kept = max_kept
        self._on_map = on_map
        self._lock = threading.Lock()
        self._mappings: dict[int, Mapping] = {}
        self._free: list[int] = []  # a stack: the slot released last is warm in the cache
        self._count = 0
        self._leases: dict[int, _LeaseRef] = {}
        self._released: deque[_LeaseRef] = deque()

    def take(self) -> int:
        """A free slot, or a new one."""
        with self._lock:
            if self._released:
                self._collect()
            if self._free:
                return self._free.pop()
            self._count += 1
            return self._count - 1

    def give_back(self, slot: int) -> None:
        """The slot holds nothing that anybody wants."""
        with self._lock:
            self._free.append(slot)

    def replace(self, slot: int, fd: int, nbytes: int) -> None:
        """The worker made a new region for `slot`. Takes the descriptor."""
        try:
            mapping = map_shared(fd, nbytes, populate=True)
            if self._on_map is not None:
                self._on_map(mapping, fd)
        finally:
            os.close(fd)
        self._mappings[slot] = mapping

    def lease(self, slot: int, used_bytes: int) -> NDArray[np.uint8]:
        """The used bytes of a slot as a fresh array; the slot is free again when it is gone."""
        if used_bytes == 0:
            self.give_back(slot)
            return np.empty(0, np.uint8)
        view: NDArray[np.uint8] = np.frombuffer(self._mappings[slot], np.uint8, used_bytes)
        with self._lock:
            if self._released:
                self._collect()
            keep = len(self._leases) < self._max_kept
            if keep:
                ref = _LeaseRef(view, self._released.append)
                ref.slot = slot
                self._leases[slot] = ref
        if keep:
            return view
        copy: NDArray[np.uint8] = view.copy()
        self.give_back(slot)
        return copy

    def _collect(self) -> None:
        released = self._released
        while released:
            slot = released.popleft().slot
            del self._leases[slot]
            self._free.append(slot)


def skeleton_of(used: NDArray[np.uint8], skeleton: bytes, skeleton_bytes: int) -> bytes:
    """The skeleton of a batch whose used bytes these are, by what `WrittenSlots.store` said."""
    return used[-skeleton_bytes:].tobytes() if skeleton_bytes else skeleton
