"""`TensorProducer`: one loader's batches for every consumer that comes. Role: the producer.

There is no thread: whoever iterates the producer serves its consumers while it waits for them, and
blocks in one ``poll`` on the listening socket and all consumers' sockets together.
"""

from __future__ import annotations

import math
import secrets
import select
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import loguru
import torch

from swift_loader.errors import ClosedError, ConfigError
from swift_loader.loader.handing_on import hand_on, start_alone, state_at
from swift_loader.loader.loader import SwiftLoader
from swift_loader.sharing.address import Address, Listener
from swift_loader.sharing.device import DeviceSlots
from swift_loader.sharing.history import Band, History
from swift_loader.sharing.member import Member
from swift_loader.sharing.messages import (
    Admit,
    Ended,
    EpochEnds,
    Join,
    Leave,
    Message,
    Took,
)
from swift_loader.sharing.regions import OwnSlots, RegionTable, SharedBatch
from swift_loader.sharing.source import Source
from swift_loader.transport.channel import ChannelClosedError
from swift_loader.transport.table import unpack

__all__ = ["VERSION", "ConsumerView", "TensorProducer"]

VERSION = "1"
_REPORTS_A_BUFFER = 2
_BAND_BYTES = 1 << 28


@dataclass(frozen=True)
class ConsumerView:
    """A consumer as the producer sees it: the next batch sent to it, and batches behind."""

    name: str
    pid: int
    state: str
    epoch: int
    batch: int
    behind: int
    nb_taken: int
    seconds: float


class TensorProducer:
    """Shares the batches of a loader with the trainings on this machine that ask for them.

    >>> producer = TensorProducer(loader, port=5556)
    >>> for _ in range(epochs):
    ...     for _ in producer:
    ...         pass
    >>> producer.join()

    Each iteration is an epoch of the loader, and each step publishes a batch and gives its index.
    With nobody to publish to, it waits. After TensorSocket (Robroek et al., 2024), whose argument
    names are accepted.

    Parameters
    ----------
    data_loader:
        A `SwiftLoader` (its slots are handed on as they are, if it was not started before), a torch
        `DataLoader`, or any iterable of batches.
    port:
        A number or a name; a Unix socket in a private directory, nothing on the network.
    ack_port, heart_ports:
        Accepted and without meaning: one socket does it all.
    rubber_band_pct:
        The share of an epoch's batches (0.02 is 2%) that is kept from its beginning, so that who
        comes late can have the whole epoch; at least ``2 * consumer_max_buffer_size`` batches.
    pack_fn:
        ``batch -> batch``, called once here before a batch is shared.
    consumer_max_buffer_size:
        Batches that are sent to a consumer and not taken by it, at most. A consumer that is further
        behind holds the others up.
    producer_batch_size:
        Accepted and without meaning: every consumer cuts the stream into its own batches.
    device:
        Move batches to this CUDA device, once for all, and share them there. A `SwiftLoader` that
        was not started is started with it.
    rubber_band_bytes:
        Most bytes that the band may hold (default 256 MiB).
    lag_timeout:
        Seconds that the others (or `join`) wait for a consumer that takes nothing, until it is
        dropped; None: for ever. A consumer that holds nobody up may take any time.
    nb_samples:
        Samples in an epoch, where the loader can't tell: for ``len`` of consumers with a
        `batch_size`.

    Raises
    ------
    ConfigError
        An argument is wrong.
    SharingError
        Another producer serves this port, or the directory is not private.
    """

    def __init__(
        self,
        data_loader: Iterable[Any],
        port: int | str = 5555,
        ack_port: object = None,
        heart_ports: object = None,
        rubber_band_pct: float = 0.02,
        pack_fn: Callable[[Any], Any] | None = None,
        consumer_max_buffer_size: int = 10,
        producer_batch_size: object = None,
        *,
        device: torch.device | str | None = None,
        rubber_band_bytes: int = _BAND_BYTES,
        lag_timeout: float | None = 300.0,
        nb_samples: int | None = None,
    ) -> None:
        _check(rubber_band_pct, consumer_max_buffer_size, rubber_band_bytes, lag_timeout)
        self._max_sent = consumer_max_buffer_size
        self._lag_timeout_s = math.inf if lag_timeout is None else lag_timeout
        self._logger = loguru.logger.bind(swift_loader="producer")
        self._listener = Listener(Address(port))
        self._regions = RegionTable()
        self._loader = data_loader
        put = self._put(data_loader, pack_fn, device)
        self._source = Source(data_loader, put, nb_samples)
        self._history: History[SharedBatch] = History(
            Band(rubber_band_pct, 2 * consumer_max_buffer_size, rubber_band_bytes)
        )
        self._members: dict[int, Member] = {}  # by descriptor
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        self._identity = secrets.token_hex(8)
        self._iterating = False
        self._said_waiting = False
        self._closed = False
        self._finalizer = weakref.finalize(
            self, _close, self._listener, self._members, self._regions
        )

    def _put(
        self,
        loader: Iterable[Any],
        pack_fn: Callable[[Any], Any] | None,
        device: torch.device | str | None,
    ) -> Callable[[Any], SharedBatch]:
        """How a batch of this loader comes into memory that can be shared."""
        target = None if device is None else torch.device(device)
        if target is not None and target.type != "cpu":
            put: Callable[[Any], SharedBatch] = DeviceSlots(target, self._regions).put
            if pack_fn is None and isinstance(loader, SwiftLoader):
                start_alone(loader, target)  # from pinned slots, ahead of us
        else:
            slots = OwnSlots(self._regions)
            if pack_fn is None and isinstance(loader, SwiftLoader):
                handed_on = hand_on(loader, self._regions.on_map)
                return slots.take if handed_on else slots.put
            put = slots.put
        return put if pack_fn is None else lambda batch: put(pack_fn(batch))

    # ---- the loop

    def __iter__(self) -> Iterator[int]:
        """Publish the loader's next epoch; gives the index of each batch.

        Waits as long as there is nobody who wants it. Ends early when all who are there came too
        late for this epoch and wait for the next.
        """
        self._check_open()
        if self._iterating:
            raise ClosedError("the producer is being iterated already: one epoch after the other")
        self._end_epoch()
        self._iterating = True
        return self._epoch()

    def _epoch(self) -> Iterator[int]:
        history = self._history
        try:
            begins = self._source.begin()
            history.begin(begins)
            for member in list(self._members.values()):
                if member.state == "waiting":
                    member.activate(history, history.head - 1)
            self._feed_all()
            while self.wait() and self._is_wanted():
                batch = self._source.next()
                if batch is None:
                    break
                history.add(batch, batch.used_bytes)
                for member in self._members.values():
                    if member.state == "active":
                        member.behind += 1
                index = history.next.k - 1
                del batch
                self._feed_all()
                yield index
            self._end_epoch()
        except Exception as error:
            for member in self._members.values():
                member.drop(f"the producer's loader raised {type(error).__name__}: {error}")
            raise
        finally:
            self._source.end()
            self._iterating = False

    def _end_epoch(self) -> None:
        """Tell everybody that the epoch is over.

        An epoch that the script left early is over only when it goes on: if it died instead, its
        consumers must not take that for the end.
        """
        history = self._history
        if history.open:
            at = history.next
            history.end(EpochEnds(at.epoch, at.k, self._source.following()))
            self._feed_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Serve consumers until the next step would not wait for them; False after `timeout` s.

        For scripts that have something else to do meanwhile; iterating waits by itself.
        """
        self._check_open()
        deadline_s = math.inf if timeout is None else time.monotonic() + timeout
        wait_s: float | None = 0.0
        while True:
            self.serve(wait_s)
            ready, wait_s = self._room()
            left_s = deadline_s - time.monotonic()
            if ready or left_s <= 0:
                return ready
            if left_s < math.inf:
                wait_s = left_s if wait_s is None else min(wait_s, left_s)

    def _room(self) -> tuple[bool, float | None]:
        """``(whether to go on, seconds until somebody has been waited for too long)``."""
        members = self._members.values()
        active = [m for m in members if m.state == "active"]
        if not active:
            if any(m.state == "waiting" for m in members):
                return True, None  # for the next epoch; nobody wants the rest of this one
            if not self._said_waiting:
                self._logger.info("no consumer at {}: waiting", self._listener.address)
                self._said_waiting = True
            return False, None
        self._said_waiting = False
        full = [m for m in active if m.full]
        if not full:
            return True, None
        if len(full) < len(active):
            return False, self._check_lag(full)
        for member in full:  # all are busy: nobody is held up
            member.full_since_s = None
        return False, None

    def _is_wanted(self) -> bool:
        """Whether anybody takes part in the epoch."""
        return any(m.state == "active" for m in self._members.values())

    def _check_lag(self, full: list[Member]) -> float | None:
        """Drop whom the others have waited for too long; seconds until the next check."""
        now_s = time.monotonic()
        timeout_s = self._lag_timeout_s
        next_s = math.inf
        for member in full:
            if member.full_since_s is None:
                member.full_since_s = now_s
            waited_s = now_s - member.full_since_s
            if waited_s >= timeout_s:
                self._logger.warning(
                    "consumer {} took nothing for {:.3g} s and is dropped", member.name, waited_s
                )
                member.drop(
                    f"it took no batch for {waited_s:.3g} s while the others waited "
                    f"(lag_timeout={timeout_s:g}); join again with a new TensorConsumer"
                )
                return 0.0
            if waited_s >= timeout_s / 2 and not member.warned:
                member.warned = True
                self._logger.warning(
                    "consumer {} holds the others up, for {:.3g} s now; it is dropped after {:g} s",
                    member.name,
                    waited_s,
                    timeout_s,
                )
            next_s = min(next_s, (timeout_s if member.warned else timeout_s / 2) - waited_s)
        return None if next_s == math.inf else next_s

    def join(self, timeout: float | None = None) -> None:
        """Wait until every consumer has been sent everything, tell them the end, and close.

        After `timeout` seconds, the rest is not waited for.
        """
        if self._closed:
            return
        deadline_s = math.inf if timeout is None else time.monotonic() + timeout
        self._end_epoch()
        self.serve(0.0)
        while True:
            behind = [
                m
                for m in self._members.values()
                if m.state == "new"
                or (m.state == "active" and (m.channel.pending or m.cursor < self._history.head))
            ]
            left_s = deadline_s - time.monotonic()
            if not behind or left_s <= 0:
                break
            lag_s = self._check_lag(behind)
            waits = [s for s in (lag_s, left_s) if s is not None and s < math.inf]
            self.serve(min(waits) if waits else None)
        for member in self._members.values():
            member.end(Ended())
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the producer is closed; build a new one to go on")

    def close(self) -> None:
        """End now. Consumers keep the batches that they have, and get an error for the next."""
        self._closed = True
        self._finalizer()

    def __enter__(self) -> TensorProducer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- what a script may ask

    def __len__(self) -> int:
        """Batches of the loader's epoch. TypeError where it can't tell."""
        return len(self._loader)  # type: ignore[arg-type]

    @property
    def address(self) -> str:
        """Where consumers connect to."""
        return str(self._listener.address)

    def consumers(self) -> list[ConsumerView]:
        """Who is connected, and where each one is."""
        now_s = time.monotonic()
        return [
            ConsumerView(
                m.name, m.pid, m.state, *m.position, m.behind, m.nb_taken, now_s - m.joined_s
            )
            for m in self._members.values()
            if m.state != "new"
        ]

    def state_dict(self) -> dict[str, Any]:
        """The state of the `SwiftLoader` as if it had delivered what every consumer has taken.

        A producer of a loader that has loaded it (`SwiftLoader.load_state_dict`) goes on there, and
        consumers with ``reconnect=`` get each batch once.

        Raises `ConfigError` for other loaders, and `ClosedError` where batches have no numbers of
        their own (``in_order=False``, a stream, a sampler).
        """
        if not isinstance(self._loader, SwiftLoader):
            raise ConfigError("state_dict() needs a SwiftLoader: ask your own loader for its state")
        if self._history.begins is None:
            return self._loader.state_dict()
        behind = max((m.behind for m in self._members.values() if m.state == "active"), default=0)
        return state_at(self._loader, *self._history.position_behind(behind))

    # ---- consumers

    def serve(self, wait_s: float | None) -> None:
        """Do what consumers ask for; wait at most `wait_s` for the first of them (None: ever)."""
        timeout_ms = None if wait_s is None else math.ceil(min(wait_s, 1e6) * 1000)
        for fd, _ in self._poll.poll(timeout_ms):
            member = self._members.get(fd)
            if member is not None:
                self._serve_one(member, fd)
            else:
                self._accept()

    def _accept(self) -> None:
        found = self._listener.accept()
        if found is None:
            return
        channel, pid = found
        member = Member(channel, pid, self._max_sent)
        self._members[channel.fileno()] = member
        self._poll.register(channel, select.POLLIN)

    def _serve_one(self, member: Member, fd: int) -> None:
        try:
            frames = member.channel.receive(wait=False)
            messages = [unpack(kind, payload) for kind, payload in frames]
        except ChannelClosedError:
            self._remove(member, fd)
            return
        except Exception as error:  # noqa: BLE001 - whoever that is, the others go on
            self._logger.warning("{} sent what is no message: {!r}", member.name, error)
            self._remove(member, fd)
            return
        for message in messages:
            self._on_message(member, message)
        member.channel.flush()
        self._feed(member, fd)

    def _feed(self, member: Member, fd: int) -> None:
        try:
            member.feed(self._history)
        except ChannelClosedError:
            self._remove(member, fd)
            return
        stuck = member.channel.pending
        if stuck != member.watched:
            member.watched = stuck
            self._poll.modify(member.channel, select.POLLIN | (select.POLLOUT if stuck else 0))

    def _feed_all(self) -> None:
        history = self._history
        gone, self._regions.gone = self._regions.gone, []
        lowest = None
        for fd, member in list(self._members.items()):
            if gone and member.state != "over":
                member.forget(gone)
            if member.state == "active":
                self._feed(member, fd)
            if member.state == "active":
                lowest = member.cursor if lowest is None else min(lowest, member.cursor)
        history.forget(lowest)

    def _remove(self, member: Member, fd: int) -> None:
        if member.state in ("active", "waiting"):
            self._logger.info("consumer {} is gone", member.name)
        self._poll.unregister(fd)
        del self._members[fd]
        member.close()

    def _on_message(self, member: Member, message: Message) -> None:
        match message:
            case Took(count, leases):
                member.took(count, leases)
            case Leave():
                member.end(None)
                self._logger.info("consumer {} leaves", member.name)
            case Join() if member.state == "new":
                self._welcome(member, message)
            case _:
                raise TypeError(f"a consumer does not send {type(message).__name__} now")

    def _welcome(self, member: Member, hello: Join) -> None:
        if hello.version != VERSION:
            member.drop(f"it speaks version {hello.version}, the producer {VERSION}: install one")
            return
        member.name = f"{hello.name} (process {member.pid})"
        member.joined_s = time.monotonic()
        history = self._history
        begins = history.begins
        cursor: int | None = None
        not_before = None
        if hello.position is not None and (hello.strict or hello.producer == self._identity):
            cursor = history.find(hello.position)
            not_before = hello.position
            if cursor is None and hello.strict:
                member.drop(f"batch {hello.position.k} of epoch {hello.position.epoch} is gone")
                return
        if cursor is None:
            not_before = None
            cursor = history.whole_epoch()
        if cursor is None and history.open and hello.late == "now":
            cursor = history.head
        self._logger.info("consumer {} joins", member.name)
        at_head = cursor is None or cursor == history.head
        joins_now = cursor is not None and at_head and not_before is None
        if joins_now:
            begins = self._source.rest(history.next.k)
        elif at_head or begins is None:
            begins = self._source.following()
        report_every = max(1, self._max_sent // _REPORTS_A_BUFFER)
        member.post(Admit(begins, report_every, self._identity))
        if cursor is None:
            member.state = "waiting"
            return
        if joins_now:
            member.post(begins)
        member.activate(history, cursor, not_before)


def _close(listener: Listener, members: dict[int, Member], regions: RegionTable) -> None:
    listener.close()
    for member in members.values():
        member.channel.flush()
        member.close()
    members.clear()
    regions.close()


def _check(band_share: float, max_sent: int, band_bytes: int, lag_timeout_s: float | None) -> None:
    def refuse(name: str, value: object, fix: str) -> None:
        raise ConfigError(f"{name}={value!r}: {fix}")

    if not 0 <= band_share <= 1:
        refuse("rubber_band_pct", band_share, "give a share of the epoch, in [0, 1]")
    if isinstance(max_sent, bool) or not isinstance(max_sent, int) or max_sent < 1:
        refuse("consumer_max_buffer_size", max_sent, "give a number of batches, at least 1")
    if band_bytes < 0:
        refuse("rubber_band_bytes", band_bytes, "give a number of bytes")
    if lag_timeout_s is not None and not lag_timeout_s > 0:
        refuse("lag_timeout", lag_timeout_s, "give seconds, or None to wait for ever")
