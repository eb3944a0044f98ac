"""Connections that have not proven anything yet. Role: part of the endpoint's loop.

ZeroMQ accepts whoever comes, on threads of its own, and ends a handshake that takes longer than ten
seconds. So that strangers can't take all descriptors and memory, no more than 64 of them are held,
or fewer where descriptors are few: of more, the oldest is cut. A training process that comes among
many strangers shakes hands within milliseconds, and is none any more with its first message.
"""

from __future__ import annotations

import socket
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

__all__ = ["Strangers"]

_MOST = 64
_SHARE = 8  # of the descriptors that there are, one in so many


class Strangers:
    """Those of one listening socket. `socket` is readable when `look` has something to do."""

    def __init__(self, router: zmq.Socket[Any], nb_descriptors: int) -> None:
        self._most = max(4, min(_MOST, nb_descriptors // _SHARE))
        self._address_of: dict[int, tuple[Any, ...]] = {}  # by descriptor, the oldest first
        self._left: list[str] = []
        self.socket = router.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)

    def look(self) -> None:
        """Take notice of who came and went, and cut those that are too many."""
        while True:
            try:
                about = parse_monitor_message(self.socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                break
            fd = int(about["value"])
            if about["event"] == zmq.EVENT_ACCEPTED:
                if address := _address(fd):
                    self._address_of[fd] = address
            elif gone := self._address_of.pop(fd, None):
                self._left.append(str(gone[0]))
        while len(self._address_of) > self._most:
            fd = next(iter(self._address_of))
            address = self._address_of.pop(fd)
            self._left.append(str(address[0]))
            _cut(fd, address)

    def knows(self, message: zmq.Frame) -> None:
        """Whoever sent `message` has been let in: it is no stranger."""
        self.look()
        self._address_of.pop(message.get(zmq.SRCFD), None)

    def left(self) -> list[str]:
        """The addresses of those who went, or were cut, as strangers; since the last call."""
        left, self._left = self._left, []
        return left

    def close(self) -> None:
        self.socket.close(linger=0)


def _address(fd: int) -> tuple[Any, ...] | None:
    """Of the peer, if it comes by the network."""
    try:
        end = socket.socket(fileno=fd)
    except OSError:  # it went already
        return None
    try:
        return end.getpeername() if end.family != socket.AF_UNIX else None
    except OSError:
        return None
    finally:
        end.detach()


def _cut(fd: int, address: tuple[Any, ...]) -> None:
    """Hang up, unless the descriptor is another connection's by now. ZeroMQ closes it."""
    if _address(fd) == address:
        end = socket.socket(fileno=fd)
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:  # it went in this moment
            return
        finally:
            end.detach()
