"""The memory that a producer's batches lie in. Role: part of the producer.

A batch crosses as it lies: the region's descriptor goes to each consumer once, then a few numbers a
batch. A `SwiftLoader`'s slots are regions as they are; the batches of any other loader are encoded
into slots that the producer owns, once for all consumers.

Who still needs a batch is counted by its references: the producer's record of it holds the slot's
lease (`base`), and so does every consumer's list of leases. When the last goes, the slot is free.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from swift_loader.batch.arena import Arena, SlotTooSmall
from swift_loader.batch.codec import encode
from swift_loader.sharing.messages import Region
from swift_loader.transport.memory import Mapping, seal
from swift_loader.transport.slots import LeasedSlots
from swift_loader.transport.written_slots import INLINE_SKELETON_BYTES, WrittenSlots

__all__ = ["OwnSlots", "RegionTable", "SharedBatch", "SharedRegion"]


class SharedRegion:
    """One region: what tells a consumer of it, and the descriptor that goes along (or None).

    `announce` is called once for each consumer.
    """

    def __init__(self, number: int, announce: Callable[[], Region], fd: int | None) -> None:
        self.number = number
        self.announce = announce
        self.fd = fd

    def close(self) -> None:
        """No consumer will need to be told of it any more."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


@dataclass(frozen=True, slots=True)
class SharedBatch:
    """A batch in memory that consumers can map. `lease` holds the memory; no region: no bytes.

    `note`: see `swift_loader.sharing.notes`.
    """

    lease: Any
    region: SharedRegion | None
    used_bytes: int
    skeleton: bytes
    skeleton_bytes: int = 0
    note: bytes = b""


class RegionTable:
    """Finds the region that a batch lies in by its address, as long as it is mapped."""

    def __init__(self) -> None:
        self._by_address: dict[int, SharedRegion] = {}
        self._gone: deque[int] = deque()
        self._lock = threading.Lock()  # reader threads map regions, the loop's thread looks them up
        self._numbers = itertools.count(1)
        self.gone: list[int] = []  # numbers of regions that consumers are to be told to forget

    def next_number(self) -> int:
        """A number that no other region has."""
        return next(self._numbers)

    def on_map(self, mapping: Mapping, fd: int) -> None:
        """`LeasedSlots` has mapped a region. It is ours until the mapping is gone."""
        seal(fd)  # who made it has mapped it by now, and consumers need not write to it
        address = np.frombuffer(mapping, np.uint8).ctypes.data
        message = Region(self.next_number(), len(mapping))
        region = SharedRegion(message.region, lambda: message, os.dup(fd))
        self._collect(address, region)
        mapping.before_unmap = partial(self._gone.append, address)

    def find(self, base: NDArray[np.uint8]) -> SharedRegion | None:
        """The region whose first byte is that of `base`."""
        if self._gone:
            self._collect()
        return self._by_address.get(base.ctypes.data)

    def close(self) -> None:
        """Close all descriptors; what consumers have mapped stays valid."""
        for region in self._by_address.values():
            region.close()
        self._by_address.clear()
        self._gone.clear()

    def _collect(self, address: int = 0, new: SharedRegion | None = None) -> None:
        """Forget the regions that are gone, and then learn of a `new` one where there is one.

        Under the lock, as the new one may lie where another was, which another thread is just
        about to forget.
        """
        gone = []
        with self._lock:
            while self._gone:  # others only append to it
                gone.append(self._by_address.pop(self._gone.popleft(), None))
            if new is not None:
                self._by_address[address] = new
        for region in gone:
            if region is not None:
                region.close()
                self.gone.append(region.number)


class OwnSlots:
    """Slots of the producer itself; as many as there are batches that somebody still needs."""

    def __init__(self, table: RegionTable) -> None:
        self._table = table
        self._written = WrittenSlots("sharing")
        self._leased = LeasedSlots(sys.maxsize, table.on_map)

    def put(self, batch: Any) -> SharedBatch:
        """Encode `batch` into a slot: its one copy.

        Raises `BatchError` when something in it can't leave the process.
        """
        return self._fill(partial(encode, batch))

    def take(self, encoded: tuple[bytes, NDArray[np.uint8]]) -> SharedBatch:
        """A batch as it lies in a slot of the loader's; copied only where it lies in none."""
        skeleton, base = encoded
        region = self._table.find(base) if base.nbytes else None
        if region is None and base.nbytes:
            return self._fill(lambda arena: _copied(base, skeleton, arena))
        nbytes = len(skeleton)
        if nbytes <= INLINE_SKELETON_BYTES or base[-nbytes:].tobytes() != skeleton:
            return SharedBatch(base, region, base.nbytes, skeleton)
        return SharedBatch(base, region, base.nbytes, b"", nbytes)

    def _fill(self, put: Callable[[Arena], bytes]) -> SharedBatch:
        written, leased = self._written, self._leased
        slot = leased.take()
        try:
            used_bytes, skeleton_bytes, skeleton = written.store(slot, written.arena(slot), put)
        except BaseException:
            written.abandon()
            leased.give_back(slot)
            raise
        grown = written.grown()
        if grown is not None:
            leased.replace(slot, os.dup(grown[0]), grown[1])
            written.sent()
        base = leased.lease(slot, used_bytes)
        region = self._table.find(base) if used_bytes else None
        return SharedBatch(base, region, used_bytes, skeleton, skeleton_bytes)


def _copied(base: NDArray[np.uint8], skeleton: bytes, arena: Arena) -> bytes:
    home = arena.empty((base.nbytes,), torch.uint8)
    if home is None:
        raise SlotTooSmall(arena.wanted_bytes)
    home.numpy()[:] = base
    return skeleton
