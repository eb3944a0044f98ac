"""The life of a pipe worker, or of a dispatching process. Role: one process.

Says `Ready` or `StartFailed` once; what follows is its `Server`'s. Ends when its channel closes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterDataPipe

from swift_loader.batch.seeding import seed_generators
from swift_loader.batch.shipping import unpack as unpack_parts
from swift_loader.dataloader2.graph import (
    DataPipe,
    answer_torch_at_once,
    list_dps,
    replace_dp,
    set_datapipes_seed,
    set_graph_random_seed,
    traverse_dps,
    with_single_hooks,
)
from swift_loader.dataloader2.reading_service.interface import WorkerInfo
from swift_loader.dataloader2.split import Placeholder, apply_worker_sharding
from swift_loader.dataloader2.workers.feed import Feed
from swift_loader.dataloader2.workers.link import DispatchPort
from swift_loader.dataloader2.workers.server import DispatcherGone, EpochOver, Server
from swift_loader.dataloader2.workers.wire import Begin, Connect
from swift_loader.transport.channel import Channel, ChannelClosedError
from swift_loader.transport.messages import Ready, StartFailed
from swift_loader.transport.table import pack, unpack
from swift_loader.worker.birth import BirthError, announce, enter, leave, read_payload, step
from swift_loader.worker.faults import revive
from swift_loader.worker.place import Place
from swift_loader.worker.progress import Progress
from swift_loader.worker.zygote import Inherited, Spawn

__all__ = ["DispatcherParts", "WorkerParts", "main"]

_Fn = Callable[..., DataPipe]


@dataclass(frozen=True)
class WorkerParts:
    """What a pipe worker is given: its graph, and the user's functions."""

    datapipe: DataPipe
    nb_worker: int
    nb_ahead: int  # of the dispatching process, where the graph has a placeholder for one
    init_fn: _Fn | None
    reset_fn: _Fn | None


@dataclass(frozen=True)
class DispatcherParts:
    """What the dispatching process is given."""

    datapipe: DataPipe
    nb_worker: int


def main(spawn: Spawn, inherited: Inherited) -> None:
    """The whole life of the process; does not return."""
    channel, progress = enter(spawn, inherited)
    status = 0
    try:
        _prepared(spawn, inherited.payload, channel, progress).serve()
    except BirthError as error:
        status = 1
        with suppress(ChannelClosedError):
            channel.send(*pack(StartFailed(error.fault)))
    except ChannelClosedError:
        pass  # the training process does not want us any more
    channel.close()
    leave(status)


def _prepared(spawn: Spawn, payload_fd: int, channel: Channel, progress: Progress) -> Server:
    """The server of this process. Raises `BirthError`."""
    with step("unpacking the graph of pipes"):
        parts: WorkerParts | DispatcherParts = unpack_parts(read_payload(payload_fd))["parts"]
        os.close(payload_fd)
        with_single_hooks(parts.datapipe)
    with step("preparing the graph of pipes"):
        if isinstance(parts, DispatcherParts):
            server = _dispatcher(parts, channel, progress)
        else:
            server = _worker(parts, spawn.index, spawn.place, channel, progress)
    channel.send(*pack(Ready(None, type(parts.datapipe).__qualname__)))
    return server


def _dispatcher(parts: DispatcherParts, channel: Channel, progress: Progress) -> Server:
    lines, early = _connected(channel, parts.nb_worker)

    def begin(epoch: Begin) -> Iterator[Any]:
        pipes = list_dps(traverse_dps(parts.datapipe))
        set_datapipes_seed(pipes, epoch.seed_generator, distributed_shared=True)
        seed_generators(epoch.seed_generator.generate_shared_seed())
        answer_torch_at_once(parts.datapipe)
        return iter(parts.datapipe)

    clients = [lines[worker] for worker in range(parts.nb_worker)]
    return Server(channel, clients, begin, progress, early)


def _worker(
    parts: WorkerParts, index: int, place: Place, channel: Channel, progress: Progress
) -> Server:
    info = WorkerInfo(parts.nb_worker, index)
    datapipe = parts.datapipe
    apply_worker_sharding(datapipe, parts.nb_worker, index)
    graph = traverse_dps(datapipe)
    placeholders = [dp for dp in list_dps(graph) if isinstance(dp, Placeholder)]
    dispatched: DispatchedPipe | None = None
    early: list[Any] = []
    if placeholders:
        lines, early = _connected(channel, 1)
        (line,) = lines.values()
        dispatched = DispatchedPipe(line, parts.nb_ahead)
        ((datapipe, _),) = replace_dp(graph, placeholders[0], dispatched).values()
    announce(place, index, datapipe)
    if parts.init_fn is not None:
        datapipe = parts.init_fn(datapipe, info)
        announce(place, index, datapipe)
    current = [datapipe]

    def begin(epoch: Begin) -> Iterator[Any]:
        set_graph_random_seed(current[0], epoch.seed_generator)
        seed_generators(epoch.seed_generator.generate_seed())
        if epoch.iter_reset_fn:
            iter_reset_fn = unpack_parts(memoryview(epoch.iter_reset_fn))["iter_reset_fn"]
            current[0] = iter_reset_fn(current[0])
        if parts.reset_fn is not None:
            current[0] = parts.reset_fn(current[0], info, epoch.seed_generator)
        if dispatched is not None:
            dispatched.begin(epoch.epoch)
        answer_torch_at_once(current[0])
        return iter(current[0])

    return Server(channel, [channel], begin, progress, early)


def _connected(channel: Channel, nb_line: int) -> tuple[dict[int, Channel], list[Any]]:
    """Wait for `Connect`s. The lines by worker, and the messages that came on their heels."""
    lines: dict[int, Channel] = {}
    early: list[Any] = []
    while len(lines) < nb_line:
        for frame in channel.receive(wait=True):
            message = unpack(*frame)
            if isinstance(message, Connect):
                lines[message.worker] = Channel(socket.socket(fileno=channel.take_fd()))
            else:
                early.append(message)
    return lines, early


class DispatchedPipe(IterDataPipe[Any]):
    """In a worker: stands for the dispatched part of the graph, and yields what it is dealt."""

    def __init__(self, line: Channel, nb_ahead: int) -> None:
        self._port = DispatchPort(line)
        self._feed = Feed(nb_ahead)

    def begin(self, epoch: int) -> None:
        """Ask for the items of this epoch."""
        self._feed.begin(epoch, self._port)

    def __iter__(self) -> Iterator[Any]:
        feed = self._feed
        while True:
            while not feed.is_settled:
                try:
                    events = self._port.receive()
                except ChannelClosedError:
                    raise DispatcherGone from None
                for event in events:
                    feed.take(event)
            if feed.items:
                item = feed.items.popleft()
                feed.ask(self._port)
                yield item
                del item  # the consumer's alone from here on: it holds a slot
            elif feed.fault is not None:
                raise revive(feed.fault, "the dispatching process")
            elif feed.skipped:
                raise EpochOver
            else:
                return
