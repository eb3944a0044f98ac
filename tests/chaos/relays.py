"""Faults of a network, done to what passes through a relay."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Callable

from tests.process.remote.lines import Line

__all__ = ["FAULTS", "Fault"]


class Fault:
    """Does harm to a `Line`, one way or both, once `begin` was called; `count` says how often."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        self.count = 0
        self._draw = random.Random(seed)
        self._left_bytes = 0
        self._most = 3
        self._lock = threading.Lock()
        self._held = b""

    def begin(self, line: Line, after_bytes: int) -> None:
        """From here on, once so many bytes have passed."""
        self._left_bytes = after_bytes
        self._line = line
        harm: Callable[[bytes], bytes] = self._harm
        which = self._draw.choice(["up", "down", "both"])
        if self.kind in ("cut", "reset", "half-close"):
            which = "both"
        if which != "down":
            line.up = harm
        if which != "up":
            line.down = harm

    def end(self) -> None:
        """No more of it."""
        self._most = 0

    def _harm(self, data: bytes) -> bytes:
        with self._lock:
            if self.count >= self._most or len(data) <= self._left_bytes:
                self._left_bytes = max(0, self._left_bytes - len(data))
                return data
            at, self._left_bytes = self._left_bytes, self._draw.randrange(500, 6000)
            self.count += 1
            return FAULTS[self.kind](self, data, at)

    def _latency(self, data: bytes, at: int) -> bytes:
        time.sleep(0.3)
        return data

    def _drip(self, data: bytes, at: int) -> bytes:
        time.sleep(0.02 * min(20, len(data)))
        return data

    def _cut(self, data: bytes, at: int) -> bytes:
        for which in range(len(self._line.near)):
            self._line.cut(which)
        return b""

    def _reset(self, data: bytes, at: int) -> bytes:
        for one in self._line.near:
            try:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it has ended
        return b""

    def _half_close(self, data: bytes, at: int) -> bytes:
        for one in self._line.near:
            try:
                one.shutdown(socket.SHUT_WR)
            except OSError:
                continue  # it has ended
        return data

    def _black_hole(self, data: bytes, at: int) -> bytes:
        self._most = self.count + 40  # for some time
        self._left_bytes = 0
        return b""

    def _flip(self, data: bytes, at: int) -> bytes:
        changed = bytearray(data)
        changed[at] ^= 1 << self._draw.randrange(8)
        return bytes(changed)

    def _drop(self, data: bytes, at: int) -> bytes:
        return data[:at] + data[at + self._draw.randint(1, 64) :]

    def _repeat(self, data: bytes, at: int) -> bytes:
        return data[:at] + data[max(0, at - self._draw.randint(1, 64)) : at] + data[at:]

    def _swap(self, data: bytes, at: int) -> bytes:
        half = at + (len(data) - at) // 2
        return data[:at] + data[half:] + data[at:half]


FAULTS: dict[str, Callable[[Fault, bytes, int], bytes]] = {
    "latency": Fault._latency,
    "drip": Fault._drip,
    "cut": Fault._cut,
    "reset": Fault._reset,
    "half-close": Fault._half_close,
    "black hole": Fault._black_hole,
    "flip": Fault._flip,
    "drop": Fault._drop,
    "repeat": Fault._repeat,
    "swap": Fault._swap,
}
