"""Connections that have not proven anything yet. Role: part of the endpoint's loop.

ZeroMQ accepts whoever comes, on threads of its own, and ends a handshake that takes longer than ten
seconds. So that strangers can't take all descriptors and memory, no more than 64 of them are held,
or fewer where descriptors are few: of more, the oldest is cut. A training process that comes among
many strangers shakes hands within milliseconds, and is none any more with its first message.

A descriptor may be another connection's by the time that it is cut, so the inode of the socket is
compared first: it is the only name that a peer on a Unix socket has.
"""

from __future__ import annotations

import os
import secrets
import socket
from typing import Any, NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

from swift_loader.transport.peer import peer_of

__all__ = ["Strangers"]

_MOST = 64
_SHARE = 8  # of the descriptors that there are, one in so many
_UNSEEN = 16  # and a thousand of ZeroMQ's: then it waits until `look` has been called


class _Stranger(NamedTuple):
    inode: int
    whence: str


class Strangers:
    """Those of one listening socket. `socket` is readable when `look` has something to do."""

    def __init__(self, router: zmq.Socket[Any], nb_descriptors: int) -> None:
        self._most = max(4, min(_MOST, nb_descriptors // _SHARE))
        self._held: dict[int, _Stranger] = {}  # by descriptor, the oldest first
        self._left: list[str] = []
        address = f"inproc://strangers-{secrets.token_hex(8)}"
        router.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.socket = router.context.socket(zmq.PAIR)
        self.socket.rcvhwm = _UNSEEN
        self.socket.connect(address)

    def look(self) -> None:
        """Take notice of who came and went, and cut those that are too many."""
        while True:
            try:
                about = parse_monitor_message(self.socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                break
            fd = int(about["value"])
            if about["event"] == zmq.EVENT_ACCEPTED:
                if stranger := _who(fd):
                    self._held[fd] = stranger
            elif gone := self._held.pop(fd, None):
                self._left.append(gone.whence)
        while len(self._held) > self._most:
            fd = next(iter(self._held))
            stranger = self._held.pop(fd)
            self._left.append(stranger.whence)
            _cut(fd, stranger)

    def knows(self, message: zmq.Frame) -> None:
        """Whoever sent `message` has been let in: it is no stranger."""
        self.look()
        self._held.pop(message.get(zmq.SRCFD), None)

    def left(self) -> list[str]:
        """The addresses of those who went, or were cut, as strangers; since the last call."""
        left, self._left = self._left, []
        return left

    def close(self) -> None:
        self.socket.close(linger=0)


def _looked_at(fd: int) -> socket.socket:
    """The socket, as it is: `socket.setdefaulttimeout` would make another's wait no more."""
    as_it_is = getattr(socket, "SOCK_NONBLOCK", 0)
    return socket.socket(type=socket.SOCK_STREAM | as_it_is, fileno=fd)


def _who(fd: int) -> _Stranger | None:
    """Who is at the other end, if `fd` is a connection that the endpoint has accepted."""
    try:
        end = _looked_at(fd)
    except OSError:  # it went already
        return None
    try:
        if end.family != socket.AF_UNIX:
            whence = str(end.getpeername()[0])
        elif not end.getsockname():  # of a pair: it leads to a worker
            return None
        else:
            process, user = peer_of(end)
            whence = f"process {process} of user {user}"
        return _Stranger(os.fstat(fd).st_ino, whence)
    except OSError:
        return None
    finally:
        end.detach()


def _cut(fd: int, stranger: _Stranger) -> None:
    """Hang up, unless the descriptor is another connection's by now. ZeroMQ closes it."""
    if _who(fd) == stranger:
        end = _looked_at(fd)
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:  # it went in this moment
            return
        finally:
            end.detach()
