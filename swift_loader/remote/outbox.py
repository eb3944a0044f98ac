"""What an endpoint has to say to one training process. Role: part of the endpoint.

Says what it is given. Short messages wait for each other, so that they travel together. Where there
are several connections, they take turns: one thread of ZeroMQ's sends and encrypts all of one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import zmq

from swift_loader.remote.frames import bundled, pack_frames, sealed
from swift_loader.remote.messages import Buffer, Message

__all__ = ["Line", "Outbox"]

_MOST_CONNECTIONS = 8
_TOGETHER_BYTES = 1 << 16  # short answers travel together up to here


class Line(NamedTuple):
    """An endpoint's socket, and whether what goes over it needs a checksum: there is no key."""

    router: zmq.Socket[Any]
    plain: bool

    def send(self, identity: bytes, frames: list[Buffer]) -> str:
        """Hand `frames` to ZeroMQ, large ones as they lie. Returns why it can't be done, or ""."""
        wrapped = sealed(frames) if self.plain else frames
        try:
            self.router.send_multipart([identity, *wrapped], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return "the training process does not read"
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return "the training process is gone"
        return ""


class Outbox:
    """Of the peer that the socket knows as `identity`."""

    def __init__(self, line: Line, identity: bytes) -> None:
        self._line = line
        self._identities = [identity]
        self._turn = 0
        self._frames: list[Buffer] = []
        self._nb_bytes = 0

    def join(self, identity: bytes) -> bool:
        """One more connection of the same peer; False if there are too many."""
        if len(self._identities) >= _MOST_CONNECTIONS:
            return False
        self._identities.append(identity)
        return True

    def say(self, message: Message) -> str:
        """Queue `message`, and send all if it is much. Returns what `flush` returns."""
        frames = pack_frames(message)
        self._frames += frames
        self._nb_bytes += sum(map(len, frames))
        return self.flush() if self._nb_bytes > _TOGETHER_BYTES else ""

    def flush(self) -> str:
        """Send what is queued. Returns why it can't be done, or ""."""
        if not self._frames:
            return ""
        frames, self._frames, self._nb_bytes = self._frames, [], 0
        self._turn = (self._turn + 1) % len(self._identities)
        return self._line.send(self._identities[self._turn], bundled(frames))
