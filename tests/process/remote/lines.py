"""A line between a training process and an endpoint that can be cut, and that can do harm."""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator

Harm = Callable[[bytes], bytes]


class Line(socketserver.ThreadingTCPServer):
    """Relays connections to a port of this machine.

    `down` and `up` may change what passes toward the endpoint and from it. While `hangs_up`, a new
    connection is accepted and closed.
    """

    daemon_threads = False

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Relayed)
        self.far_port = port
        self.near: list[socket.socket] = []
        self.hangs_up = False
        self.down: Harm = bytes
        self.up: Harm = bytes

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.server_address[1]}"

    def cut(self, which: int) -> None:
        with contextlib.suppress(OSError):  # it is cut already
            self.near[which].shutdown(socket.SHUT_RDWR)


class _Relayed(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        line = self.server
        assert isinstance(line, Line)
        if line.hangs_up:
            return
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", line.far_port)) as far,
        ):
            line.near.append(self.request)
            other = {far: self.request, self.request: far}
            while True:
                for one in select.select(list(other), [], [])[0]:
                    if not (data := one.recv(1 << 16)):
                        return
                    other[one].sendall(line.up(data) if one is far else line.down(data))


@contextlib.contextmanager
def relay(port: int) -> Iterator[Line]:
    """A line to the endpoint at this port."""
    with Line(port) as line:
        relaying = threading.Thread(target=line.serve_forever, args=(0.05,))
        relaying.start()
        try:
            yield line
        finally:
            line.shutdown()
            relaying.join()
            for which in range(len(line.near)):
                line.cut(which)


class Flips:
    """Flips a bit in one of so many bytes, `most` times, after the first of them."""

    def __init__(self, every_bytes: int, most: int) -> None:
        self._every_bytes = every_bytes
        self._left_bytes = every_bytes
        self._most = most
        self.count = 0

    def __call__(self, data: bytes) -> bytes:
        if self.count >= self._most or len(data) <= self._left_bytes:
            self._left_bytes = max(0, self._left_bytes - len(data))
            return data
        changed = bytearray(data)
        changed[self._left_bytes] ^= 1 << self.count % 8
        self._left_bytes = self._every_bytes
        self.count += 1
        return bytes(changed)
