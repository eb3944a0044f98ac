"""`socket.setdefaulttimeout` is for the script's connections, and not for the library's."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from swift_loader.remote import strangers
from swift_loader.transport.channel import Channel, channel_pair


@pytest.fixture(params=[0, 0.01])
def default_timeout(request: pytest.FixtureRequest) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(request.param)
    yield
    socket.setdefaulttimeout(before)


@pytest.mark.usefixtures("default_timeout")
def test_a_channel_waits_for_its_frames() -> None:
    near, far = channel_pair()
    other = Channel(socket.socket(fileno=far.detach()))
    for sender, reader in ((near, other), (other, near)):
        later = threading.Timer(0.1, sender.send, (7, b"late"))
        later.start()
        assert reader.receive(wait=True) == [(7, b"late")]
        later.join()
    near.close()
    other.close()


@pytest.mark.usefixtures("default_timeout")
def test_a_socket_that_was_made_with_a_timeout_waits_in_a_process_without_one() -> None:
    near, far = channel_pair()
    socket.setdefaulttimeout(None)
    other = Channel(socket.socket(fileno=far.detach()))
    assert os.get_blocking(other.fileno())
    near.close()
    other.close()


@pytest.mark.usefixtures("default_timeout")
def test_looking_at_a_socket_does_not_change_it() -> None:
    near, far = channel_pair()
    with far:
        assert strangers._who(near.fileno()) is None  # it leads to a worker
        assert os.get_blocking(near.fileno())
    near.close()
