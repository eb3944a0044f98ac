"""The making end of a line: answers every `Give` of its feeds, once, in the order they came.

Role: runs a pipe worker (one feed: the training process) or a dispatching process (one feed a
worker). Hears `Begin` and `Give`; says `Made`, `Failed`, `Skipped`.

States of an epoch: begun → ended or failed; either stays so until the next `Begin`. A `Give` of an
epoch that is over is skipped; one of an epoch that has not begun here yet waits.
"""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from swift_loader.batch.codec import encode
from swift_loader.dataloader2.workers.dealer import Dealer
from swift_loader.dataloader2.workers.wire import Begin, Give
from swift_loader.transport.channel import Channel, ChannelClosedError
from swift_loader.transport.messages import ErrorReport, Failed, Made, Skipped, StageTimes
from swift_loader.transport.table import pack, unpack
from swift_loader.transport.written_slots import WrittenSlots
from swift_loader.worker.faults import report
from swift_loader.worker.progress import Progress

__all__ = ["DispatcherGone", "EpochOver", "Server"]

# A chunk is sent when it is full or when making it took this long.
_CHUNK_S = 0.006
_NO_TIMES = StageTimes(0.0, 0.0, 0.0)


class EpochOver(BaseException):
    """Raised inside a worker's graph: the dispatching process has begun another epoch."""


class DispatcherGone(BaseException):
    """Raised inside a worker's graph: the dispatching process died. The training process knows."""


class _Client:
    """One feed, as its server sees it."""

    def __init__(self, number: int, channel: Channel, label: str) -> None:
        self.number = number
        self.channel = channel
        self.slots = WrittenSlots(label)
        self.orders: deque[Give] = deque()
        self.held: deque[Any] = deque()  # made, and to be sent before anything else
        self.one_by_one = False
        self.fault: ErrorReport | None = None  # that it gets after all that is held for it


class Server:
    """Serves what `begin(Begin)` returns, an iterator for each epoch, to its clients by turns.

    `early`: messages that came on the control channel before this was made.
    """

    def __init__(
        self,
        control: Channel,
        clients: list[Channel],
        begin: Callable[[Begin], Iterator[Any]],
        progress: Progress,
        early: list[Any],
    ) -> None:
        self._control = control
        self._clients = [_Client(i, channel, f"chunk-{i}") for i, channel in enumerate(clients)]
        self._begin = begin
        self._progress = progress
        self._epoch = -1
        self._dealer: Dealer | None = None
        self._nb_made = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, None)
        for client in self._clients:
            if client.channel is not control:
                self._selector.register(client.channel, selectors.EVENT_READ, client)
        self._early = early

    def serve(self) -> None:
        """Until the control channel closes, which raises `ChannelClosedError`."""
        for message in self._early:
            self._take(self._clients[0], message)
        while True:
            client = self._next_client()
            self._hear(wait=client is None)
            client = self._next_client()
            if client is not None:
                self._answer(client, client.orders.popleft())

    def _next_client(self) -> _Client | None:
        for client in self._clients:
            if client.orders and client.orders[0].epoch <= self._epoch:
                return client
        return None

    def _hear(self, wait: bool) -> None:
        for key, _ in self._selector.select(None if wait else 0):
            client: _Client | None = key.data
            channel = self._control if client is None else client.channel
            try:
                frames = channel.receive(wait=False)
            except ChannelClosedError:
                if client is None:
                    raise
                self._selector.unregister(channel)  # a worker died; the training process knows
                client.orders.clear()
                continue
            for frame in frames:
                self._take(client or self._clients[0], unpack(*frame))

    def _take(self, client: _Client, message: Begin | Give) -> None:
        if isinstance(message, Begin):
            self._begin_epoch(message)
        else:
            client.orders.append(message)

    def _begin_epoch(self, begin: Begin) -> None:
        self._epoch = begin.epoch
        self._nb_made = 0
        for client in self._clients:
            client.held.clear()
            client.one_by_one = False
            client.fault = None
        try:
            items = self._begin(begin)
            for _ in range(begin.nb_skip):
                next(items, None)
            self._nb_made = begin.nb_skip
            self._dealer = Dealer(items, len(self._clients))
        except (Exception, SystemExit) as error:  # noqa: BLE001 it goes to the training loop
            fault = report(error, "beginning the epoch")
            for client in self._clients:
                client.fault = fault

    def _answer(self, client: _Client, give: Give) -> None:
        if give.epoch < self._epoch:
            self._say(client, Skipped(give.ticket))
            return
        if client.fault is not None and not client.held:
            self._say(client, Failed(give.ticket, client.fault))
            return
        self._progress.at_ticket(give.ticket)
        try:
            items, ended = self._make(client, give.nb_item)
        except EpochOver:
            self._say(client, Skipped(give.ticket))
        except DispatcherGone:
            self._hear(wait=True)  # for the training process to end this one
        else:
            if not items and not ended:
                assert client.fault is not None
                self._say(client, Failed(give.ticket, client.fault))
            else:
                self._send(client, give, items, ended)
        self._progress.at_stage(0)

    def _make(self, client: _Client, nb_item: int) -> tuple[list[Any], bool]:
        """Up to `nb_item` items, and whether the epoch ends after them."""
        if client.one_by_one:
            nb_item = 1
        items: list[Any] = []
        stop_at_s = time.monotonic() + _CHUNK_S
        assert self._dealer is not None
        while len(items) < nb_item:
            if client.held:
                items.append(client.held.popleft())
                continue
            if client.fault is not None:
                break
            self._progress.sample[0] = self._nb_made
            try:
                items.append(self._dealer.next_for(client.number))
            except StopIteration:
                return items, True
            except (EpochOver, DispatcherGone):
                raise
            except BaseException as error:  # noqa: BLE001 it goes to the training loop
                client.fault = report(error, f"making item {self._nb_made} of the epoch")
                break
            self._nb_made += 1
            if time.monotonic() >= stop_at_s:
                break
        return items, False

    def _send(self, client: _Client, give: Give, items: list[Any], ended: bool) -> None:
        slots = client.slots
        try:
            put = partial(encode, (items, ended))
            made = slots.store(give.slot, slots.arena(give.slot), put)
        except Exception as error:  # noqa: BLE001 it goes to the training loop
            slots.abandon()
            if len(items) > 1:  # one of them is at fault: those before it count
                client.one_by_one = True
                client.held.extendleft(reversed(items[1:]))
                self._send(client, give, items[:1], False)
                return
            client.fault = report(error, "encoding an item")
            client.held.clear()
            self._say(client, Failed(give.ticket, client.fault))
            return
        used_bytes, skeleton_bytes, skeleton = made
        grown = slots.grown()
        answer = Made(
            give.ticket,
            len(items),
            used_bytes,
            grown[1] if grown else 0,
            _NO_TIMES,
            skeleton,
            skeleton_bytes,
        )
        self._say(client, answer, (grown[0],) if grown else ())
        slots.sent()

    def _say(
        self, client: _Client, message: Made | Failed | Skipped, fds: tuple[int, ...] = ()
    ) -> None:
        try:
            client.channel.send(*pack(message), fds)
        except ChannelClosedError:
            if client.channel is self._control:
                raise
            client.orders.clear()  # a worker died; the training process knows
