"""A framed byte stream between two processes of one user, over a Unix socket pair.

A frame is ``<u32 length> <u8 kind> <payload>``; the length counts kind and payload. Descriptors
travel beside the frames (``SCM_RIGHTS``), in the order in which they were sent; the frame's kind
tells its reader how many belong to it. Several frames may arrive in one system call, which is what
keeps small batches cheap.

A socket pair has no address, so nobody else can connect to it.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

__all__ = ["Channel", "ChannelClosedError", "channel_pair"]

_HEAD = struct.Struct("<IB")
_MAX_FDS = 16
_FD_SPACE = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
_LONGEST_BYTES = 1 << 32  # all that the head of a frame can say
_READ_BYTES = 1 << 15  # well below what malloc maps afresh for every call
# Plain numbers: joining the enumeration's flags costs more than the system call.
_WAIT = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_DONTWAIT = int(socket.MSG_DONTWAIT)
_NOW = _WAIT | _DONTWAIT
_LOST_FDS = int(socket.MSG_CTRUNC)


class ChannelClosedError(ConnectionError):
    """The other end of a channel is gone."""


class Channel:
    """One end. Not for two receiving threads at once; `post` may be called from any thread."""

    def __init__(self, sock: socket.socket, longest_bytes: int = _LONGEST_BYTES) -> None:
        sock.setblocking(True)  # whatever `socket.setdefaulttimeout` says here, or at the other end
        self._sock = sock
        self._longest_bytes = longest_bytes  # of a frame that is taken
        self._rest = bytearray()  # of a frame that has not come whole yet
        self._missing = 0  # so many bytes must come before it is worth looking at again
        self._fds: deque[int] = deque()
        self._outbox: deque[tuple[bytes, int]] = deque()  # with a descriptor, or -1
        self._flushing = threading.Lock()
        _open_channels.add(self)

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def closed(self) -> bool:
        return self._sock.fileno() < 0

    # ---- sending

    def send(self, kind: int, payload: bytes, fds: Sequence[int] = ()) -> None:
        """Send one frame, waiting while the socket is full.

        Raises `ChannelClosedError` when the other end is gone.
        """
        data = _HEAD.pack(len(payload) + 1, kind) + payload
        try:
            if fds:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                sent = self._sock.sendmsg([data], rights)
                if sent == len(data):
                    return
                data = data[sent:]
            self._sock.sendall(data)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def post(self, kind: int, payload: bytes, fd: int = -1) -> None:
        """Queue one frame; `flush` hands it to the socket, and `fd` with it, which is taken."""
        self._outbox.append((_HEAD.pack(len(payload) + 1, kind) + payload, fd))

    def flush(self) -> None:
        """Send what was posted, as far as the socket takes it without waiting.

        What does not fit stays queued. The peer has unread frames then and will answer them, and
        every answer is followed by another `flush`, so nothing waits for ever, as long as a whole
        frame fits: what may be long travels in memory of its own, by a descriptor. A gone peer is
        silent here: whoever receives learns of it.
        """
        outbox = self._outbox
        while outbox and self._flushing.acquire(blocking=False):
            try:
                data, fd = _take_run(outbox)
                try:
                    sent = self._send_now(data, fd)
                except BlockingIOError:
                    outbox.appendleft((data, fd))
                    return
                except OSError:
                    _close(fd)
                    return
                _close(fd)
                if sent < len(data):
                    outbox.appendleft((data[sent:], -1))
                    return
            finally:
                self._flushing.release()

    def _send_now(self, data: bytes, fd: int) -> int:
        if fd < 0:
            return self._sock.send(data, _DONTWAIT) if data else 0
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        return self._sock.sendmsg([data], rights, _DONTWAIT)

    @property
    def pending(self) -> bool:
        """Whether frames that were posted wait for room in the socket."""
        return bool(self._outbox)

    # ---- receiving

    def receive(self, *, wait: bool) -> list[tuple[int, bytes]]:
        """Whole frames that have arrived, as ``(kind, payload)``; with `wait`, at least one.

        Raises `ChannelClosedError` when the other end is gone and all frames were read, `OSError`
        when a descriptor came that this process has no room for: the channel is of no use then.
        """
        frames: list[tuple[int, bytes]] = []
        while True:
            try:
                data, ancillary, flags, _ = self._sock.recvmsg(
                    _READ_BYTES, _FD_SPACE, _WAIT if wait else _NOW
                )
            except BlockingIOError:
                return frames
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            if ancillary:
                self._keep_fds(ancillary)
            if flags & _LOST_FDS:
                raise OSError(errno.EMFILE, "no descriptor is left for what came over a channel")
            if not data:
                raise ChannelClosedError("the other end of the channel is closed")
            self._parse(data, frames)
            if frames:
                return frames

    def take_fd(self) -> int:
        """The next descriptor that came with the frames; the caller owns it."""
        return self._fds.popleft()

    def _parse(self, data: bytes, frames: list[tuple[int, bytes]]) -> None:
        if self._rest:
            self._rest += data
            self._missing -= len(data)
            if self._missing > 0:
                return  # a long frame costs its length, and not its length for every piece
            data = bytes(self._rest)
            self._rest.clear()
        start, end, length = 0, len(data), 1
        while end - start >= _HEAD.size:
            length, kind = _HEAD.unpack_from(data, start)
            stop = start + 4 + length
            if length > self._longest_bytes:
                raise ChannelClosedError(f"a frame of {length:,} bytes came, which is too long")
            if stop > end:
                break
            frames.append((kind, data[start + 5 : stop]))
            start, length = stop, 1
        if start < end:
            self._rest += data[start:]
            self._missing = start + 4 + length - end

    def _keep_fds(self, ancillary: list[tuple[int, int, Any]]) -> None:
        for level, kind, raw in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
                self._fds.extend(fds)

    def close(self) -> None:
        """Close this end and every descriptor that nobody took. May be called again."""
        while self._fds:
            os.close(self._fds.popleft())
        while self._outbox:
            _close(self._outbox.popleft()[1])
        self._sock.close()


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


def _take_run(queue: deque[tuple[bytes, int]]) -> tuple[bytes, int]:
    """All frames up to the next one with a descriptor; or that one, with it."""
    data: list[bytes] = []
    while queue:
        frame, fd = queue.popleft()
        if fd < 0:
            data.append(frame)
        elif data:
            queue.appendleft((frame, fd))
            break
        else:
            return frame, fd
    return b"".join(data), -1


def channel_pair() -> tuple[Channel, socket.socket]:
    """Our end, and the socket of the other end, to be passed to another process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours), theirs


# A process that the user forks holds copies of these sockets. It must not: a worker learns by the
# end of its socket that nobody wants batches any more.
_open_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _close_in_forked_child() -> None:
    for channel in list(_open_channels):
        channel.close()


os.register_at_fork(after_in_child=_close_in_forked_child)
