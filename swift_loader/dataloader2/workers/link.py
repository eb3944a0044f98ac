"""The two kinds of port: to a process that was started here, and to the dispatching process.

Role: part of the training process (`PipeLink`), part of a worker (`DispatchPort`). Both send
`Give`; a `PipeLink` also sends `Begin` and `Connect`.
"""

from __future__ import annotations

import socket

from swift_loader.dataloader2.workers.wire import Begin, Connect, Give
from swift_loader.pipeline.answers import OrderedSlots
from swift_loader.pipeline.link import Event
from swift_loader.pipeline.local import LocalLink
from swift_loader.transport.channel import Channel, ChannelClosedError
from swift_loader.transport.table import pack, unpack
from swift_loader.worker.launch import Zygote
from swift_loader.worker.place import Place

__all__ = ["MAX_KEPT_CHUNKS", "DispatchPort", "PipeLink"]

_MODULE = "swift_loader.dataloader2.workers.process"
# Chunks that the consumer may keep without their being copied out of shared memory.
MAX_KEPT_CHUNKS = 64


class PipeLink(LocalLink):
    """A link to a pipe worker or to a dispatching process: its life is `workers.process.main`."""

    def __init__(
        self, zygote: Zygote, worker: int, place: Place, payload_fd: int, name: str
    ) -> None:
        super().__init__(zygote, worker, place, payload_fd, MAX_KEPT_CHUNKS, module=_MODULE)
        self.name = name

    def give(self, ticket: int, epoch: int, nb_item: int) -> None:
        """See `Port`."""
        slot = self._slots.take(ticket)
        self._process.channel.post(*pack(Give(ticket, epoch, nb_item, slot)))

    def begin(self, begin: Begin) -> None:
        """Tell the process of an epoch. Of one that is gone, its sentinel tells."""
        self._tell(begin)

    def connect(self, worker: int, end: socket.socket) -> None:
        """Hand one end of the line between a worker and the dispatching process over."""
        self._tell(Connect(worker), end)

    def _tell(self, message: Begin | Connect, *ends: socket.socket) -> None:
        try:
            self._process.channel.send(*pack(message), [end.fileno() for end in ends])
        except ChannelClosedError:
            self._channel_open = False


class DispatchPort:
    """A worker's port to the dispatching process, over a socket that was handed to it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._slots = OrderedSlots(MAX_KEPT_CHUNKS)

    def give(self, ticket: int, epoch: int, nb_item: int) -> None:
        """See `Port`."""
        slot = self._slots.take(ticket)
        self._channel.post(*pack(Give(ticket, epoch, nb_item, slot)))

    def flush(self) -> None:
        """See `Port`."""
        self._channel.flush()

    def receive(self) -> list[Event]:
        """Wait for answers. Raises `ChannelClosedError` when the dispatching process is gone."""
        channel = self._channel
        return [self._slots.event(unpack(*frame), channel) for frame in channel.receive(wait=True)]
