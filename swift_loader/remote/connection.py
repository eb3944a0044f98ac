"""A connection to an endpoint that never waits. Role: part of the training process.

There is no thread and no clock here. ZeroMQ's own thread sends, receives, beats the heart and
retries; it makes one of two descriptors readable, for what came in and for what happened to the
connection. The descriptor of a socket tells only of what is new, and any call may be the one that
takes notice; so whoever is woken reads all there is, and `flush`, if it finds something to read,
says so on a socket of ours. A ZeroMQ socket is not for two threads at once: the caller has a lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from swift_loader.errors import ConfigError
from swift_loader.remote.address import Address
from swift_loader.remote.frames import bundled, checked, pack_frames, sealed, unpack_frames
from swift_loader.remote.messages import Buffer, Chunk, Message
from swift_loader.transport.wakeup import Wakeup

__all__ = ["Connection"]

_RETRY_S = 0.1
_LONGEST_RETRY_S = 2.0
_LINGER_S = 0.5
_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
)


class Connection:
    """One to `address`; ZeroMQ tries to make it again and again, ever less often.

    Raises `ConfigError` when nothing can be reached by such an address.
    """

    def __init__(self, address: Address) -> None:
        self.is_shaken = False  # hands, as `happened` has seen
        self._outbox: list[Buffer] = []
        self._plain = address.keys is None
        self._context: zmq.Context[Any] = zmq.Context()
        sock = self._socket = self._context.socket(zmq.DEALER)
        sock.setsockopt(zmq.SNDHWM, 0)
        sock.setsockopt(zmq.RCVHWM, 0)  # bounded by credits, and a full one would stop heartbeats
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.IPV6, 1)
        sock.setsockopt(zmq.RECONNECT_IVL, int(_RETRY_S * 1000))
        sock.setsockopt(zmq.RECONNECT_IVL_MAX, int(_LONGEST_RETRY_S * 1000))
        life_ms = max(100, int(address.timeout_s * 1000 / 3))
        sock.setsockopt(zmq.CONNECT_TIMEOUT, life_ms)
        sock.setsockopt(zmq.HANDSHAKE_IVL, life_ms)
        sock.setsockopt(zmq.HEARTBEAT_IVL, max(50, min(1000, life_ms // 2)))
        sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, life_ms)
        if address.keys is not None:
            address.keys.secure_client(sock)
        self._monitor = sock.get_monitor_socket(_EVENTS)
        self._wakeup = Wakeup()
        try:
            sock.connect(address.address)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"remote_workers={address.address!r}: {error.strerror}; give it as tcp://host:port"
            ) from None
        if self._monitor.poll(0):  # only who has once found nothing is told of what comes
            self.wake()

    def filenos(self) -> Sequence[int]:
        """What becomes readable: by what came in, by what happened, and by `wake`."""
        return [self._socket.fileno(), self._monitor.fileno(), self._wakeup.fileno()]

    # ---- down

    def post(self, message: Message) -> None:
        """Queue: `flush` sends it. Not for a `Chunk`."""
        self._outbox += pack_frames(message)

    def flush(self) -> None:
        """Send what is queued."""
        if not self._outbox:
            return
        frames, self._outbox = self._outbox, []
        try:
            self._socket.send_multipart(self._wrapped(bundled(frames)), zmq.NOBLOCK)
        except zmq.Again:  # it ended between two frames: `happened` says why
            self.wake()
            return
        if self._socket.poll(0):  # it may have taken notice of what came in: nobody else will
            self.wake()

    def send_chunk(self, chunk: Chunk) -> None:
        """Send it at once; ZeroMQ reads its bytes from where they lie."""
        self._socket.send_multipart(self._wrapped(pack_frames(chunk)), zmq.NOBLOCK, copy=False)

    def take_leave(self, message: Message) -> None:
        """Send a last message, which `close` waits for a little."""
        with contextlib.suppress(zmq.ZMQError):  # it is gone: no need to take leave
            self._socket.setsockopt(zmq.LINGER, int(_LINGER_S * 1000))
            self._socket.send_multipart(self._wrapped(pack_frames(message)), zmq.NOBLOCK)

    def _wrapped(self, frames: list[Buffer]) -> list[Buffer]:
        return sealed(frames) if self._plain else frames

    # ---- up

    def wake(self) -> None:
        """Make a descriptor readable."""
        self._wakeup.wake()

    def woken(self) -> None:
        """Whoever was to be woken is awake."""
        self._wakeup.clear()

    def happened(self) -> Iterator[tuple[int, int]]:
        """What happened to the connection: ZeroMQ's number of the event, and its value."""
        while True:
            try:
                frames = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            about = parse_monitor_message(frames)
            event = int(about["event"])
            self.is_shaken = self.is_shaken or event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            yield event, int(about["value"])

    def received(self) -> Iterator[Message]:
        """The messages that came in. Raises `FrameError`."""
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            buffers = [frame.buffer for frame in frames]
            yield from unpack_frames(checked(buffers) if self._plain else buffers)

    def close(self) -> None:
        """Free everything; may be called again."""
        if self._context.closed:
            return
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._context.term()
        self._wakeup.close()
