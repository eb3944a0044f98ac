"""An endpoint: workers on this machine for training on others. Role: a process of its own.

One loop, one thread: it waits on the ZeroMQ socket, on all workers' sockets and on its own wake-up
socket together. Says to training processes: `Welcome`, `Closing`, `Ping`, what their sessions say
(see `swift_loader.remote.session`), and `Status` to whoever asks.

A training process that is gone is noticed by the connection: ZeroMQ's heartbeats close one that
shows no life, and a `Ping` that can't be delivered ends the session. So a killed training process
frees its workers within about a second, one that the network swallowed within ten.

Who may connect may run code here, by sending a dataset: that is what an endpoint is for. So nobody
may connect but who holds the key, and that is settled before anything of theirs is decoded.
"""

from __future__ import annotations

import itertools
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import zmq

from swift_loader.errors import LoaderError
from swift_loader.pipeline.local import LocalLink
from swift_loader.remote.binding import bind
from swift_loader.remote.descriptors import Descriptors
from swift_loader.remote.figures import Figures
from swift_loader.remote.frames import checked, pack_frames, unpack_frames
from swift_loader.remote.gate import Gate
from swift_loader.remote.keys import Keys
from swift_loader.remote.messages import (
    PROTOCOL,
    AskStatus,
    Attach,
    Bye,
    Closing,
    DamagedError,
    FrameError,
    FullError,
    Hello,
    Message,
    Ping,
    Status,
    Welcome,
)
from swift_loader.remote.outbox import Line, Outbox
from swift_loader.remote.payloads import Payloads
from swift_loader.remote.session import Session, Worker
from swift_loader.remote.shares import shares
from swift_loader.remote.status import line_of
from swift_loader.remote.strangers import Strangers
from swift_loader.remote.versions import here, what_differs
from swift_loader.telemetry.sinks.sink import SinkSpec
from swift_loader.transport.wakeup import Wakeup
from swift_loader.worker.launch import Zygote
from swift_loader.worker.place import Place

__all__ = ["Endpoint", "Options"]

_TICK_S = 1.0
_IO_THREADS = 4  # each sends, and encrypts, for some of the connections
_GRACE_S = 1.0  # for a worker that is let go of
_LINGER_S = 0.5
_MESSAGES_A_TURN = 256
_MOST_NAMED = 5  # addresses, in one line of the log
_MOST_TURNED_DOWN = 64
_FDS_OF_A_SESSION = 32  # its connections, its dataset, and a worker that is started
_KEPT = 64  # slots of a worker that the network may be reading; a session bounds itself below


@dataclass(frozen=True)
class Options:
    """What `swift-loader serve` was told. `keys` None: nobody is kept out."""

    bind: str
    workers: int
    keys: Keys | None
    status_line: bool = False
    metrics: tuple[SinkSpec, ...] = ()


class _Peer(NamedTuple):
    session: Session
    outbox: Outbox
    token: str


class Endpoint:
    """Serves until SIGTERM or SIGINT. `logger` is told of sessions, `ready` of the address."""

    def __init__(self, options: Options, logger: Any, ready: Callable[[str], None]) -> None:
        self._options = options
        self._logger = logger
        self._ready = ready
        self._began_s = time.monotonic()
        self._address = ""
        self._peers: dict[bytes, _Peer] = {}
        self._numbers = itertools.count(1)
        self._payloads = Payloads()
        self._leaving: list[tuple[float, LocalLink]] = []
        self._worker_of: dict[int, tuple[bytes, Worker]] = {}  # by descriptor
        self._watched: dict[Worker, tuple[int, ...]] = {}
        self._nb_sessions = 0
        self._nb_kept_out = 0
        self._nb_ticks = 0
        self._stopping = ""
        self._figures = Figures(self.facts)
        self._descriptors = Descriptors()
        self._turned_down: dict[bytes, Closing] = {}  # to be told at the next tick
        self._poller = zmq.Poller()
        self._wakeup = Wakeup()
        self._poller.register(self._wakeup, zmq.POLLIN)

    # ---- the loop

    def serve(self) -> None:
        """Bind, serve, and free everything. For the main thread: it takes SIGTERM and SIGINT.

        Raises `ConfigError` when the address can't be bound.
        """
        options = self._options
        context: zmq.Context[Any] = zmq.Context(io_threads=_IO_THREADS)
        gate = Gate(context, options.keys) if options.keys is not None else None
        router = context.socket(zmq.ROUTER)
        self._line = Line(router, plain=options.keys is None)
        strangers = self._strangers = Strangers(router, self._descriptors.limit)
        handlers = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        wakeup_before = signal.set_wakeup_fd(self._wakeup.signal_fd, warn_on_full_buffer=False)
        self._zygote = Zygote.acquire()
        try:
            self._address = bind(router, options.bind, options.keys)
            self._poller.register(router, zmq.POLLIN)
            self._poller.register(strangers.socket, zmq.POLLIN)
            if gate is not None:
                self._poller.register(gate.socket, zmq.POLLIN)
            self._descriptors.hold_back(self._address)
            self._figures.open(options.metrics, self._address, self._logger)
            self._ready(self._address)
            self._logger.info("serves at {} with {} workers", self._address, options.workers)
            self._loop(gate)
            self._logger.info("ends: {}", self._stopping)
        finally:
            self._end()
            router.disable_monitor()
            strangers.close()
            router.close(linger=int(_LINGER_S * 1000))
            if gate is not None:
                gate.close()
            context.term()
            self._zygote.release()
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            self._wakeup.close()
            self._descriptors.restore()

    def _loop(self, gate: Gate | None) -> None:
        tick_s = time.monotonic() + _TICK_S
        while not self._stopping:
            wait_s = max(0.0, tick_s - time.monotonic())
            for ready, _ in self._poller.poll(int(wait_s * 1000) + 1):
                if ready is self._line.router:
                    self._receive()
                elif ready is self._strangers.socket:
                    self._strangers.look()
                elif isinstance(ready, int):
                    self._on_descriptor(ready)
                elif gate is not None and ready is gate.socket:
                    gate.answer()
            for identity in list(self._peers):
                self._turn(identity)
            if time.monotonic() >= tick_s:
                tick_s = time.monotonic() + _TICK_S
                self._tick()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopping = f"{signal.Signals(number).name} came"

    def _on_descriptor(self, fd: int) -> None:
        if fd == self._wakeup.fileno():
            self._wakeup.clear()
            return
        identity, worker = self._worker_of.get(fd, (b"", None))
        peer = self._peers.get(identity)
        if worker is None or peer is None or worker not in peer.session.workers:
            return
        with self._blaming(identity), self._descriptors:
            peer.session.receive(worker)
        self._watch(identity, worker)

    def _turn(self, identity: bytes) -> None:
        """After events: answers go to the network, which makes room, and orders to workers."""
        self._flush(identity)
        peer = self._peers.get(identity)
        if peer is None:
            return
        with self._blaming(identity):
            peer.session.dispatch()
        if peer.session.state == "over":
            self._close(identity, "its dataset could not be built")

    def _tick(self) -> None:
        """Once a second: who is still there, who needs how many workers."""
        for identity in list(self._peers):
            self._say(identity, Ping())
            self._flush(identity)
        while self._turned_down:
            identity, closing = self._turned_down.popitem()
            self._line.send(identity, pack_frames(closing))
        self._share_out()
        now_s = time.monotonic()
        for until_s, link in self._leaving:
            if now_s >= until_s:
                link.wait_closed(now_s)
        self._leaving = [(until_s, link) for until_s, link in self._leaving if now_s < until_s]
        if left := self._strangers.left():
            self._nb_kept_out += len(left)
            did = "did not prove to hold the key" if self._options.keys else "said nothing"
            whence = ", ".join(sorted(set(left))[:_MOST_NAMED])
            self._logger.warning(
                "kept out {} connections, which {}: from {}", len(left), did, whence
            )
        self._nb_ticks += 1
        self._figures.tick()
        if self._options.status_line and self._nb_ticks % 5 == 0:
            self._logger.info(line_of(self.facts()))

    # ---- training processes

    def _receive(self) -> None:
        for _ in range(_MESSAGES_A_TURN):
            try:
                identity, *frames = self._line.router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            peer = identity.bytes
            if peer not in self._peers:
                self._strangers.knows(identity)
            with self._blaming(peer):
                buffers = [frame.buffer for frame in frames]
                for message in unpack_frames(checked(buffers) if self._line.plain else buffers):
                    self._take(peer, message)

    def _take(self, identity: bytes, message: Message) -> None:
        peer = self._peers.get(identity)
        if isinstance(message, AskStatus):
            self._line.send(identity, pack_frames(Status(self.facts())))
        elif peer is None and isinstance(message, Attach):
            self._join(identity, message)
        elif peer is None:
            if not isinstance(message, Hello):
                raise FrameError(f"a {type(message).__name__} without a session")
            try:
                with self._descriptors:
                    self._open(identity, message)
            except FrameError as error:
                self._logger.warning("a session is refused: {}", error)
                raise
        elif isinstance(message, Bye):
            self._close(identity, "the training process said so")
        else:
            before = peer.session.state
            peer.session.take(message)
            if peer.session.state != before:
                self._share_out()

    def _open(self, identity: bytes, hello: Hello) -> None:
        if hello.protocol != PROTOCOL:
            raise FrameError(
                f"it speaks version {hello.protocol} of the protocol, this endpoint {PROTOCOL}: "
                "install the same swift_loader on both sides"
            )
        differs = what_differs(here(), hello.versions)
        if differs:
            raise FrameError(f"{differs}: these don't work together, install the same on both")
        if hello.consumer_index >= hello.nb_consumer:
            raise FrameError("a consumer that there is not")
        if (left := self._descriptors.nb_left) < _FDS_OF_A_SESSION:
            raise FullError(
                f"there is no room for another session: {left} descriptors are left, and one needs "
                f"{_FDS_OF_A_SESSION}. Raise the endpoint's `ulimit -n`, or end other sessions"
            )
        session = Session(
            next(self._numbers),
            hello,
            self._payloads,
            self._options.workers,
            self._fork,
            lambda message: self._say(identity, message),
            self._wakeup.wake,
        )
        token = secrets.token_hex()
        self._peers[identity] = _Peer(session, Outbox(self._line, identity), token)
        self._nb_sessions += 1
        self._logger.info(
            "session {} begins: consumer {} of {}, a dataset of {:,} bytes{}",
            session.number,
            hello.consumer_index,
            hello.nb_consumer,
            hello.payload_bytes,
            "" if session.state == "arriving" else ", which is here already",
        )
        needs_payload = session.state == "arriving"
        self._say(identity, Welcome(session.number, token, self._options.workers, needs_payload))
        self._flush(identity)  # before the workers start: it times the way
        self._share_out()

    def _join(self, identity: bytes, join: Attach) -> None:
        for session, outbox, token in self._peers.values():
            known = session.number == join.session and join.token.isascii()
            if known and secrets.compare_digest(token, join.token) and outbox.join(identity):
                return
        raise FrameError("a connection for a session that there is not, or one too many")

    @contextmanager
    def _blaming(self, identity: bytes) -> Iterator[None]:
        """What goes wrong inside is one peer's doing, or want: the others don't notice."""
        try:
            yield
        except LoaderError as error:
            self._expel(identity, error)
        except OSError as error:
            self._expel(identity, FullError(f"the endpoint's machine has no room: {error}"))

    def _expel(self, identity: bytes, error: LoaderError) -> None:
        """A peer did what it must not, or its session can't go on: say so and end the session."""
        closing = Closing(str(error), again=isinstance(error, DamagedError | FullError))
        if identity in self._peers:
            self._logger.warning("a session is ended: {}", error)
            self._say(identity, closing)
            self._flush(identity)
            self._close(identity, str(error))
        elif closing.again and len(self._turned_down) < _MOST_TURNED_DOWN:
            self._turned_down[identity] = closing  # not at once: it will come again at once
        else:
            self._line.send(identity, pack_frames(closing))

    def _close(self, identity: bytes, why: str) -> None:
        peer = self._peers.pop(identity, None)
        if peer is None:
            return
        for worker in peer.session.workers:
            self._unwatch(worker)
        self._let_go(peer.session.close())
        self._logger.info(
            "session {} ends after {:,} batches: {}", peer.session.number, peer.session.nb_made, why
        )
        self._share_out()

    def _say(self, identity: bytes, message: Message) -> None:
        peer = self._peers.get(identity)
        if peer is not None and (why := peer.outbox.say(message)):
            self._close(identity, why)

    def _flush(self, identity: bytes) -> None:
        peer = self._peers.get(identity)
        if peer is not None and (why := peer.outbox.flush()):
            self._close(identity, why)

    # ---- workers

    def _fork(self, number: int, place: Place, payload_fd: int) -> LocalLink:
        return LocalLink(self._zygote, number, place, payload_fd, _KEPT)

    def _share_out(self) -> None:
        sessions = {peer.session.number: peer.session for peer in self._peers.values()}
        needs = {number: session.needy for number, session in sessions.items()}
        shared = shares(needs, self._options.workers)
        for identity, peer in list(self._peers.items()):
            session = peer.session
            before = list(session.workers)
            with self._blaming(identity), self._descriptors:
                self._let_go(session.resize(shared[session.number]))
                if session.wanting:
                    self._logger.warning("session {}: {}", session.number, session.wanting)
            for worker in before:
                if worker not in session.workers:
                    self._unwatch(worker)
            for worker in session.workers:
                if worker not in self._watched:
                    self._watch(identity, worker)

    def _let_go(self, links: list[LocalLink]) -> None:
        for link in links:
            link.close()
            self._leaving.append((time.monotonic() + _GRACE_S, link))

    def _watch(self, identity: bytes, worker: Worker) -> None:
        peer = self._peers.get(identity)
        wanted = tuple(worker.link.filenos()) if peer and worker in peer.session.workers else ()
        if self._watched.get(worker, ()) == wanted:
            return
        self._unwatch(worker)
        for fd in wanted:
            self._poller.register(fd, zmq.POLLIN)
            self._worker_of[fd] = identity, worker
        if wanted:
            self._watched[worker] = wanted
        else:
            self._share_out()  # one died: it is replaced if it is still needed

    def _unwatch(self, worker: Worker) -> None:
        for fd in self._watched.pop(worker, ()):
            if self._worker_of.get(fd, (b"", None))[1] is worker:
                del self._worker_of[fd]
                self._poller.unregister(fd)

    # ---- for a reader

    def facts(self) -> dict[str, Any]:
        """What `swift-loader status` shows."""
        sessions = [peer.session for peer in self._peers.values()]
        return {
            "address": self._address,
            "secured": self._options.keys is not None,
            "uptime_s": round(time.monotonic() - self._began_s, 1),
            "workers": self._options.workers,
            "workers_running": sum(len(session.workers) for session in sessions),
            "sessions_so_far": self._nb_sessions,
            "kept_out": self._nb_kept_out,
            "datasets_bytes": self._payloads.nbytes,
            "sessions": [session.facts() for session in sessions],
            "versions": here(),
        }

    # ---- the end

    def _end(self) -> None:
        self._figures.close()
        for identity in list(self._peers):
            self._say(identity, Closing("the endpoint was shut down"))
            self._flush(identity)
            self._close(identity, "the endpoint ends")
        deadline_s = time.monotonic() + _GRACE_S
        for _, link in self._leaving:
            link.wait_closed(deadline_s)
        self._leaving.clear()
