"""A consumer's end of its socket. Role: the consumer.

Sends `Join`, `Took`, `Leave`. What comes in is queued as it comes; a batch is mapped and decoded
when it is taken. `Took` is sent when a few batches were taken: fewer than half of what the producer
sends ahead, so that it never waits for what was taken already.

The connection outlives its consumer as long as somebody holds a tensor of a batch, for the end of
the socket is what tells the producer that the memory is free.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from swift_loader.batch.codec import decode
from swift_loader.pipeline.item import Decoder
from swift_loader.sharing.device import DeviceRegion
from swift_loader.sharing.messages import (
    Batch,
    ForgetRegion,
    Join,
    Leave,
    Message,
    Region,
    Took,
)
from swift_loader.sharing.private import PageTable, PrivateRegion
from swift_loader.transport.channel import Channel
from swift_loader.transport.slots import skeleton_of
from swift_loader.transport.table import pack, unpack

__all__ = ["Subscription"]

_NOTHING = np.empty(0, np.uint8)
_REPORT_S = 1.0


class _Lease(NamedTuple):
    number: int
    region: PrivateRegion | DeviceRegion
    used_bytes: int


class _LeaseRef(weakref.ref[Any]):
    """A weak reference to what all tensors over a batch hold. Holds the connection."""

    __slots__ = ("connection", "lease")
    connection: Subscription
    lease: _Lease


#: the leases that tensors hold, in this process; by id, for a reference hashes as its referent
_held: dict[int, _LeaseRef] = {}


def _freed(ref: _LeaseRef) -> None:
    """The last tensor over a batch is gone. May run anywhere, in any thread."""
    _held.pop(id(ref), None)
    ref.connection.freed(ref.lease)


class Subscription:
    """See the module's text. Raises `ChannelClosedError` where the producer is gone.

    `decoder` takes the place of the built-in one, for batches in shared memory.
    """

    def __init__(
        self,
        channel: Channel,
        hello: Join,
        max_kept: int,
        *,
        copy_on_device: bool,
        decoder: Decoder | None = None,
    ) -> None:
        self._channel = channel
        self._max_kept = max_kept
        self._copy_on_device = copy_on_device
        self._decode = decoder or decode
        self._queue: deque[Message] = deque()
        self._regions: dict[int, PrivateRegion | DeviceRegion] = {}
        self._pages = PageTable()
        self._held = 0  # leases that tensors hold
        self._over: deque[_Lease] = deque()  # put there by whoever frees the last tensor
        self._draining: deque[tuple[int, Any]] = deque()  # with an event of the device's stream
        self._to_report: list[int] = []
        self._nb_taken = 0
        self._reported_s = 0.0
        self._left = False
        self._closing = threading.Lock()
        self.report_every = 1
        channel.send(*pack(hello))

    def next_message(self) -> Message:
        """The next thing that the producer said; waits for it."""
        queue = self._queue
        if not queue and self._draining:
            self._receive(wait=False)
            if not queue:
                self._report(wait=True)  # before we wait: it may be these that the producer needs
        while not queue:
            self._receive(wait=True)
        return queue.popleft()

    def _receive(self, *, wait: bool) -> None:
        channel = self._channel
        for frame in channel.receive(wait=wait):
            message = unpack(*frame)
            if type(message) is ForgetRegion:
                self._regions.pop(message.region).close()
            elif type(message) is not Region:
                self._queue.append(message)
            elif message.device:
                self._regions[message.region] = DeviceRegion(message)
            else:
                self._regions[message.region] = PrivateRegion(channel.take_fd(), message.nbytes)

    def open(self, batch: Batch) -> Any:
        """The batch itself, in memory that is the caller's own to write to.

        Views of the device's memory are not (`copy_on_device`).
        """
        self._nb_taken += 1
        if not batch.lease:
            return self._decode(batch.skeleton, _NOTHING.copy())
        region = self._regions[batch.region]
        lease = _Lease(batch.lease, region, batch.used_bytes)
        # Early for a device, so that by the next report it is done with what had ended before.
        if self._held >= self._max_kept or isinstance(region, DeviceRegion):
            self._collect()
        copied = self._held >= self._max_kept
        self._held += 1
        if isinstance(region, DeviceRegion):
            copied = copied or self._copy_on_device
            opened, holder = region.open(batch.skeleton, batch.used_bytes, copied=copied)
            self._hold(holder, lease)
            del holder  # where the batch was copied, nothing else holds the slot
            return opened
        base = region.view(batch.used_bytes)
        if copied:
            base = base.copy()
            self._over.append(lease)
        else:
            self._hold(base, lease)
        return self._decode(skeleton_of(base, batch.skeleton, batch.skeleton_bytes), base)

    def _hold(self, holder: Any, lease: _Lease) -> None:
        ref = _LeaseRef(holder, _freed)
        ref.connection = self
        ref.lease = lease
        _held[id(ref)] = ref

    def taken(self) -> None:
        """Say what was taken, if it is time to: the producer must not think that we are stuck."""
        if self._nb_taken >= self.report_every or time.monotonic() - self._reported_s >= _REPORT_S:
            self._report()

    def _report(self, *, wait: bool = False) -> None:
        """With `wait`, also of leases for whose end the device must be waited for."""
        self._reported_s = time.monotonic()
        self._collect()
        while self._draining:
            number, event = self._draining[0]
            if wait:
                event.synchronize()
            elif not event.query():
                break
            self._to_report.append(number)
            self._draining.popleft()
        if self._nb_taken or self._to_report:
            message = Took(self._nb_taken, tuple(self._to_report))
            self._nb_taken = 0
            self._to_report = []
            self._channel.post(*pack(message))
        self._channel.flush()

    def _collect(self) -> None:
        over = self._over
        count = len(over)  # before the faults are counted: those that end later may have had more
        nb_faults = self._pages.nb_faults() if count else None
        for _ in range(count):
            lease = over.popleft()
            self._held -= 1
            if isinstance(lease.region, DeviceRegion):
                self._draining.append((lease.number, lease.region.ended()))
            else:
                lease.region.forget_writes(lease.used_bytes, self._pages, nb_faults)
                self._to_report.append(lease.number)

    def freed(self, lease: _Lease) -> None:
        """The last tensor over a batch is gone. May run anywhere, in any thread."""
        self._over.append(lease)
        if self._left and len(self._over) >= self._held:
            self._close()

    def leave(self) -> None:
        """Want no more. The socket closes when the last tensor is gone, if not now."""
        self._report(wait=True)
        self._channel.post(*pack(Leave()))
        self._channel.flush()
        self._queue.clear()
        self._left = True
        if len(self._over) >= self._held:
            self._close()

    def lost(self) -> None:
        """The producer is gone, or has dropped us; batches that are held stay valid."""
        self._queue.clear()
        self._left = True
        if len(self._over) >= self._held:
            self._close()

    def _close(self) -> None:
        if self._closing.acquire(blocking=False):  # once, whoever comes first
            self._channel.close()
            self._pages.close()
            for region in self._regions.values():
                region.close()
            self._regions.clear()
