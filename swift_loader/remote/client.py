"""A link to an endpoint. Role: part of the training process.

Says to the endpoint: `Hello`, `Chunk`, `SetPlan`, `MakeFrame`, `Forget`, `AskStacks`, `AskHere`,
`Bye`, `Attach`.

One link is one session over one `Connection`; with a key, over several, by which answers come in
turn, as decrypting what comes by one keeps a core busy at 0.5 GB/s. When one of them ends the link
is `Gone`, and the pipeline asks for another one, which is tried until `Address.give_up_at_s`. So
nothing that belongs to an old session can come late. Every call is under a lock, and only `stack`
waits.
"""

from __future__ import annotations

import errno
import hashlib
import os
import select
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf

import numpy as np
import zmq
from numpy.typing import NDArray

from swift_loader.errors import ConfigError
from swift_loader.order.part import Number
from swift_loader.pipeline.elsewhere import Brief
from swift_loader.pipeline.link import (
    Crashed,
    Event,
    Gone,
    MadeBatch,
    NotMade,
    Refused,
    Running,
    Up,
)
from swift_loader.plan import Plan
from swift_loader.remote.address import Address
from swift_loader.remote.connection import Connection
from swift_loader.remote.frames import SHORT_BYTES
from swift_loader.remote.messages import (
    CHUNK_BYTES,
    PROTOCOL,
    AskHere,
    AskStacks,
    Attach,
    Buffer,
    Bye,
    Chunk,
    Closing,
    DamagedError,
    FrameError,
    Hello,
    Here,
    MadeFrame,
    MakeFrame,
    Message,
    Ping,
    Stacks,
    Welcome,
)
from swift_loader.remote.payloads import map_whole
from swift_loader.remote.versions import here
from swift_loader.transport.messages import ErrorReport, Forget, SetPlan
from swift_loader.worker.faults import report

__all__ = ["EndpointLink", "sha256_of"]

_CONNECTIONS_WITH_KEY = 2
_STACK_WAIT_S = 3.0
_BROKEN_HANDSHAKES = 3  # in a row, until it is told
_LONGEST_ROUND_TRIP_S = 0.5
_ALIGNED_BYTES = 8


class FrameParcel:
    """A batch in the memory that ZeroMQ received it into."""

    __slots__ = ("_data", "_skeleton", "nbytes")

    def __init__(self, skeleton: bytes, data: Buffer) -> None:
        self._skeleton = skeleton
        self._data = data
        self.nbytes = len(data)

    def open(self) -> tuple[bytes, NDArray[np.uint8]]:
        base: NDArray[np.uint8] = np.frombuffer(self._data, np.uint8)
        self._data = b""
        if self.nbytes <= SHORT_BYTES or base.ctypes.data % _ALIGNED_BYTES:
            base = base.copy()  # it lies among others, and where it happened to be read to
        return self._skeleton, base

    def discard(self) -> None:
        self._data = b""


class EndpointLink:
    """See `swift_loader.pipeline.link.Link`."""

    def __init__(self, worker: int, address: Address, brief: Brief, payload_sha256: str) -> None:
        self.worker = worker
        self.name = f"endpoint {address.address}"
        self._address = address
        self._brief = brief
        self._capacity = 1
        self._welcome = False
        self._over = False
        self._trouble = "nothing answers there"
        self._tries_again = False  # ZeroMQ does, after the handshake that has just failed
        self._round_trip_s = 0.0
        self._asked_at_s = 0.0
        self._heard_at_s = 0.0
        self._asked_here_at_s: float | None = None  # and nothing has come since
        self._stacks: str | None = None
        self._early: list[Event] = []  # came while `stack` was waiting
        self._lock = threading.RLock()
        address.wanted()
        self._connection = Connection(address)
        self._joined: list[Connection] = []
        self._connection.post(self._hello(payload_sha256))
        self._connection.flush()

    def _hello(self, payload_sha256: str) -> Hello:
        place, brief = self._brief.place, self._brief
        return Hello(
            PROTOCOL,
            here(),
            os.fstat(brief.payload_fd).st_size,
            payload_sha256,
            place.consumer_index,
            place.nb_consumer,
            place.worker_per_consumer,
            place.seed,
            self.worker,
            brief.nb_links,
        )

    def filenos(self) -> Sequence[int]:
        if self._over:
            return []
        return [fd for one in self._connections for fd in one.filenos()]

    @property
    def due_s(self) -> float:
        """Who is there and says nothing makes nothing readable.

        Once it has let this process in, ZeroMQ's heartbeat tells whether anything comes from it.
        Whether anything gets there is for an answer to tell.
        """
        if self._over:
            return inf
        if not self._welcome:
            return min(self._address.give_up_at_s or inf, self._answer_due_s)
        if self._asked_here_at_s is not None:
            return self._asked_here_at_s + self._address.timeout_s / 2
        return self._heard_at_s + self._address.timeout_s / 6

    @property
    def _answer_due_s(self) -> float:
        """When a `Hello` counts as lost: there is time for another one."""
        return self._asked_at_s + self._address.timeout_s / 2 if self._asked_at_s else inf

    @property
    def _connections(self) -> Sequence[Connection]:
        return (self._connection, *self._joined)

    # ---- down

    def set_plan(self, plan_id: int, plan: Plan) -> None:
        self._post(SetPlan(plan_id, plan))

    def make(self, ticket: int, number: Number, indices: bytes) -> None:
        self._post(MakeFrame(ticket, number, indices))

    def forget(self, tickets: Iterable[int]) -> None:
        self._post(Forget(frozenset(tickets)))

    def _post(self, message: Message) -> None:
        with self._lock:
            self._connection.post(message)

    def flush(self) -> None:
        with self._lock:
            if not self._over:
                self._connection.flush()

    # ---- up

    def receive(self) -> list[Event]:
        with self._lock:
            events, self._early = self._early, []
            if not self._over:
                self._read(events)
            if time.monotonic() >= self.due_s:
                self._on_due(events)
            return events

    def _on_due(self, events: list[Event]) -> None:
        if not self._welcome:
            story = f"{self.name} could not be reached: {self._trouble}"
            self._lose(self._address.refusal or story, events)
        elif self._asked_here_at_s is None:
            self._asked_here_at_s = time.monotonic()
            self._connection.post(AskHere())
            self._connection.flush()
        else:
            self._lose(f"{self.name} does not answer any more", events)

    def _read(self, events: list[Event]) -> None:
        self._connection.woken()
        for event, value in self._connection.happened():
            self._on_connection(event, value, events)
            if self._over:
                return
        self._read_messages(events)
        for joined in self._joined:
            joined.woken()
            for event, _ in joined.happened():
                if event == zmq.EVENT_DISCONNECTED and joined.is_shaken and not self._over:
                    self._on_lost(events)

    def _read_messages(self, events: list[Event]) -> None:
        try:
            for message in chain(*(one.received() for one in self._connections)):
                self._on_message(message, events)
                if self._over:
                    return
        except DamagedError as error:
            self._lose(f"{self.name}: {error}; it is asked for again", events)
        except FrameError as error:
            self._lose(f"{self.name} sent what it must not: {error}", events)

    def _on_message(self, message: Message, events: list[Event]) -> None:
        if type(message) is not Ping:  # which comes by itself
            self._heard_at_s = time.monotonic()
            self._asked_here_at_s = None
        match message:
            case MadeFrame():
                self._address.useful()
                parcel = FrameParcel(message.skeleton, message.data)
                events.append(
                    MadeBatch(
                        message.ticket, message.nb_samples, message.times, parcel, message.bad
                    )
                )
            case Welcome(session=session, token=token, capacity=capacity, need_payload=need):
                self._welcome = True
                self._join(session, token)
                if self._asked_at_s:
                    passed_s = time.monotonic() - self._asked_at_s
                    self._round_trip_s = min(passed_s, _LONGEST_ROUND_TRIP_S)
                self._capacity = max(1, capacity)
                events.append(Running(None))
                if need:
                    self._send_payload()
            case Up():
                self._address.answers()
                events.append(
                    Up(
                        message.nb_samples,
                        message.dataset_name,
                        self._capacity,
                        self._round_trip_s,
                        message.lengths,
                    )
                )
            case NotMade() | Crashed():
                events.append(message)
            case Refused(fault=fault):
                self._refuse(fault, events)
            case Closing(why=why, again=again):
                if self._welcome or again or self._address.known:
                    story = f"{self.name} ended the session: {why}"
                    self._address.refusal = story if again else ""
                    self._lose(story, events, counted=not again)
                else:
                    self._refuse(_plainly(f"{self.name} refuses: {why}"), events)
            case Stacks(text=text):
                self._stacks = text
            case Here() | Ping():
                pass
            case _:
                raise FrameError(f"a {type(message).__name__}, which is not for here")

    def _join(self, session: int, token: str) -> None:
        while self._address.keys is not None and len(self._joined) + 1 < _CONNECTIONS_WITH_KEY:
            self._joined.append(Connection(self._address))
            self._joined[-1].post(Attach(session, token))
            self._joined[-1].flush()

    def _send_payload(self) -> None:
        """All of it, from where it lies: ZeroMQ reads it while it sends."""
        whole = map_whole(self._brief.payload_fd)
        for offset in range(0, len(whole), CHUNK_BYTES):
            self._connection.send_chunk(Chunk(offset, whole[offset : offset + CHUNK_BYTES]))
        self._connection.wake()

    # ---- the connection

    def _on_connection(self, event: int, value: int, events: list[Event]) -> None:
        shaken = self._connection.is_shaken
        if event == zmq.EVENT_CONNECTED:
            self._trouble = "something is there, but it does not answer"
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._asked_at_s = time.monotonic()
            self._trouble = "something is there, but it does not answer as an endpoint does"
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._turned_away("it has another key than remote_key", events)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and shaken:
            self._lose(f"a message from {self.name} came damaged, and is asked for again", events)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self._no_endpoint(events)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self._tries_again = True
            if value != errno.EAGAIN:  # it was not for want of time
                why = "it hangs up, as one with another key does (remote_key)"
                self._handshake_broke(why, events)
        elif event == zmq.EVENT_DISCONNECTED and shaken:
            self._on_lost(events)
        elif event == zmq.EVENT_DISCONNECTED and self._tries_again:
            self._tries_again = False
        elif event == zmq.EVENT_DISCONNECTED:  # what came was no handshake
            self._no_endpoint(events)

    def _no_endpoint(self, events: list[Event]) -> None:
        """ZeroMQ does not try again."""
        mine = "one" if self._address.keys else "none"
        self._handshake_broke(
            "one side uses a key and the other does not, or no endpoint is there at all: "
            f"this side has {mine} (remote_key)",
            events,
        )
        self._lose(f"{self.name} could not be reached: {self._trouble}", events)

    def _handshake_broke(self, why: str, events: list[Event]) -> None:
        """One may be an endpoint that ends just then, or a message that was damaged."""
        self._trouble = why
        self._address.broken += 1
        if self._address.broken >= _BROKEN_HANDSHAKES:
            self._turned_away(why, events)

    def _turned_away(self, why: str, events: list[Event]) -> None:
        """An error of whoever starts the training; later, an endpoint that is of no use."""
        self._trouble = why
        if not self._address.known:
            self._refuse(_plainly(f"{self.name} does not let this process in: {why}"), events)

    def _on_lost(self, events: list[Event]) -> None:
        self._read_messages(events)  # what it sent before counts
        self._lose(f"the connection to {self.name} was lost", events)

    def _lose(self, story: str, events: list[Event], *, counted: bool = True) -> None:
        if self._over:
            return
        self._over = True
        self._address.lost(counted)
        if how_long := self._address.given_up():
            events.append(Gone(f"{story}; it was of no use {how_long}", None, replace="never"))
        else:
            events.append(Gone(story, None, replace="uncounted"))

    def _refuse(self, fault: ErrorReport, events: list[Event]) -> None:
        self._over = True
        events.append(Refused(fault))

    # ---- supervision

    def stack(self) -> str:
        """What the endpoint says of its workers, if it says it soon."""
        with self._lock:
            self._stacks = None
            # not the wake-up sockets: they are for the thread that calls `receive`
            open_ = () if self._over else self._connections
            fds = [fd for one in open_ for fd in one.filenos()[:2]]
        self._post(AskStacks())
        self.flush()
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        deadline_s = time.monotonic() + _STACK_WAIT_S
        while True:
            with self._lock:
                if not self._over:
                    self._read(self._early)
                if self._stacks is not None or self._over:
                    break
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                break
            poll.poll(remaining_s * 1000)
        with self._lock:
            if self._early:
                self._connection.wake()
            stacks: str | None = vars(self)["_stacks"]  # `_read` has set it, which mypy can't see
            if stacks is not None:
                return stacks
            if not self._welcome or self._over:
                return "there is no connection to it"
            return f"the endpoint did not say within {_STACK_WAIT_S:g} s where its workers are"

    def kill(self, why: str) -> None:
        """The session ends, and with it its workers; another one begins."""
        with self._lock:
            if self._over:
                return
            self._say_bye()
            self._over = True
            self._early.append(Gone(f"{self.name} {why}", None))
            self._connection.wake()

    def _say_bye(self) -> None:
        if self._connection.is_shaken and not self._over:
            self._connection.take_leave(Bye())

    def close(self) -> None:
        with self._lock:
            self._say_bye()
            self._over = True

    def wait_closed(self, deadline_s: float) -> None:
        with self._lock:
            self._over = True
            for one in self._connections:
                one.close()


def sha256_of(payload_fd: int) -> str:
    """By which the endpoint knows a payload."""
    return hashlib.sha256(map_whole(payload_fd)).hexdigest()


def _plainly(text: str) -> ErrorReport:
    return report(ConfigError(text), "shaking hands")
