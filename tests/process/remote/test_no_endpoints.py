"""Addresses where something else than an endpoint answers: an error in time, or done without."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("zmq")

import zmq

from swift_loader import SwiftLoader
from swift_loader.errors import LoaderError
from tests import datasets
from tests.conformance import indices_of

pytestmark = pytest.mark.usefixtures("nothing_left")

TIMEOUT_S = 1.0


@contextmanager
def stranger(says: str) -> Iterator[str]:
    """The address of a server of another protocol, which says this to whoever connects."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    accepted, _ = listening.accept()
                except OSError:  # the test is over
                    return
                held.append(accepted)
                accepted.sendall(says.encode())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for each in held:
                each.close()


@contextmanager
def router() -> Iterator[str]:
    """The address of a ZeroMQ socket that takes everything and answers nothing."""
    context: Any = zmq.Context()
    bound = context.socket(zmq.ROUTER)
    try:
        yield f"tcp://127.0.0.1:{bound.bind_to_random_port('tcp://127.0.0.1')}"
    finally:
        context.destroy(linger=0)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("says", ["", "SSH-2.0-OpenSSH_9.2\r\n", "-ERR unknown\r\n" * 10, None])
@pytest.mark.parametrize("workers", [0, 1])
def test_something_else_that_answers_is_an_error_in_time_or_done_without(
    says: str | None, workers: int
) -> None:
    with (
        router() if says is None else stranger(says) as address,
        SwiftLoader(
            datasets.Numbers,
            {"n": 40},
            batch_size=4,
            worker_per_consumer=workers,
            validate=False,
            remote_workers=[address],
            remote_timeout=TIMEOUT_S,
        ) as loader,
    ):
        if workers:
            assert [i for batch in loader for i in indices_of(batch)] == list(range(40))
            return
        with pytest.raises(LoaderError, match="could not be reached: something is there") as caught:
            list(loader)
        assert f"remote_timeout={TIMEOUT_S:g}" in str(caught.value)
