"""A ZeroMQ stream of as many bytes a frame as a batch has, and nothing else: what a line can carry.

Role: the sender is a process of its own, ``python -m benchmarks.bare_stream PORT BYTES KEY``. It
sends from memory that is there already, so it makes no batches.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import zmq

from swift_loader.remote.keys import load_keys

_NB_BUFFER = 10


@contextmanager
def frames(nb_byte: int, key: str | None) -> Iterator[Iterator[Any]]:
    """Endless lists of one uint8[`nb_byte`] array, as they arrive; with a key, through CURVE."""
    pull: zmq.Socket[Any] = zmq.Context().socket(zmq.PULL)
    pull.set_hwm(_NB_BUFFER)
    keys = load_keys(key)
    if keys is not None:
        keys.secure_server(pull, b"bare")
    port = pull.bind_to_random_port("tcp://127.0.0.1")

    def received() -> Iterator[Any]:
        while True:
            yield [np.frombuffer(pull.recv(copy=False).buffer, np.uint8)]

    arguments = [str(port), str(nb_byte), key or ""]
    sender = subprocess.Popen([sys.executable, "-m", "benchmarks.bare_stream", *arguments])
    try:
        yield received()
    finally:
        sender.kill()
        sender.wait()
        pull.close(linger=0)


def _send(port: str, nb_byte: str, key: str) -> None:
    push: zmq.Socket[Any] = zmq.Context().socket(zmq.PUSH)
    push.set_hwm(_NB_BUFFER)
    keys = load_keys(key or None)
    if keys is not None:
        keys.secure_client(push)
    push.connect(f"tcp://127.0.0.1:{port}")
    buffers = [bytearray(b"\1") * int(nb_byte) for _ in range(_NB_BUFFER)]
    while True:
        for buffer in buffers:
            push.send(buffer, copy=False)


if __name__ == "__main__":
    _send(*sys.argv[1:])
