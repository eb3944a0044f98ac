"""Who may connect: ZeroMQ's authentication requests (RFC 27, ZAP), answered by the endpoint itself.

CURVE has proven by then that the peer holds the secret of the public key that it shows; all that
is left is to compare that key. Nothing of the peer's has been decoded.
"""

from __future__ import annotations

import hmac
from typing import Any

import zmq
from zmq.utils import z85

from swift_loader.remote.keys import Keys

__all__ = ["DOMAIN", "Gate"]

DOMAIN = b"swift_loader"
_MOST_AT_ONCE = 64


class Gate:
    """Answers for one ZeroMQ context; lives in the endpoint's loop."""

    def __init__(self, context: zmq.Context[Any], keys: Keys) -> None:
        self._allowed = z85.decode(keys.client_public)
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def answer(self) -> None:
        """Answer what was asked. Whoever is kept out leaves as a stranger (`strangers`)."""
        for _ in range(_MOST_AT_ONCE):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            version, request, _, _, _, mechanism, *credentials = frames
            allowed = (
                mechanism == b"CURVE"
                and len(credentials) == 1
                and hmac.compare_digest(credentials[0], self._allowed)
            )
            verdict = (b"200", b"OK") if allowed else (b"400", b"another key")
            self.socket.send_multipart([version, request, *verdict, b"training", b""])

    def close(self) -> None:
        self.socket.close()
