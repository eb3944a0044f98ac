"""Channels: frames arrive whole and once, however they are cut, and no descriptor is lost."""

from __future__ import annotations

import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_loader.transport.channel import Channel, ChannelClosedError, channel_pair

LONG_BYTES = 64 << 20
LONG_S = 20.0  # it takes some tenths of a second; each read copying all before it took minutes


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    near, far = channel_pair()
    other = Channel(far)
    yield near, other
    near.close()
    other.close()


def nb_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=40)), max_size=12),
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
)
def test_frames_arrive_whole_however_the_stream_is_cut(
    frames: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(struct.pack("<IB", len(p) + 1, k) + p for k, p in frames)
    near, far = socket.socketpair()
    channel = Channel(far)
    got = []
    at = i = 0
    while at < len(stream):
        piece = stream[at : at + cuts[i % len(cuts)]]
        near.sendall(piece)
        got += channel.receive(wait=False)
        at, i = at + len(piece), i + 1
    assert got == frames
    near.close()
    channel.close()


def test_long_message_is_read_in_time_that_grows_with_its_length(
    ends: tuple[Channel, Channel],
) -> None:
    near, far = ends
    sent = os.urandom(1 << 16) * (LONG_BYTES >> 16)
    thread = threading.Thread(target=near.send, args=(7, sent))
    began_s = time.monotonic()
    thread.start()
    got = far.receive(wait=True)
    thread.join()
    assert time.monotonic() - began_s < LONG_S
    assert got == [(7, sent)]


def test_descriptor_that_was_posted_is_closed_when_the_other_end_is_gone(
    ends: tuple[Channel, Channel],
) -> None:
    near, far = ends
    far.close()
    before = nb_descriptors()
    for _ in range(3):
        near.post(1, b"indices", os.memfd_create("indices"))
        near.flush()
    assert nb_descriptors() == before
    assert not near.pending


def test_descriptors_that_wait_for_room_are_closed_with_the_channel() -> None:
    near, far = channel_pair()
    before = nb_descriptors()
    while not near.pending:
        near.post(1, bytes(1 << 14), os.memfd_create("indices"))
        near.flush()
    near.close()
    far.close()
    assert nb_descriptors() == before - 2


def test_descriptors_come_with_their_frames_in_order(ends: tuple[Channel, Channel]) -> None:
    near, far = ends
    fds = [os.memfd_create(str(i)) for i in range(3)]
    for i, fd in enumerate(fds):
        os.write(fd, b"%d" % i)
        near.post(i, b"", fd)
    near.flush()
    got: list[tuple[int, bytes]] = []
    while len(got) < 3:
        got += far.receive(wait=True)
    assert [kind for kind, _ in got] == [0, 1, 2]
    for i in range(3):
        fd = far.take_fd()
        assert os.pread(fd, 9, 0) == b"%d" % i
        os.close(fd)


def test_closed_other_end_is_told_to_who_receives(ends: tuple[Channel, Channel]) -> None:
    near, far = ends
    near.send(1, b"last")
    near.close()
    assert far.receive(wait=True) == [(1, b"last")]
    with pytest.raises(ChannelClosedError):
        far.receive(wait=True)


def test_descriptor_that_there_is_no_room_for_is_an_error_of_who_receives(
    ends: tuple[Channel, Channel],
) -> None:
    near, far = ends
    fd = os.memfd_create("indices")
    near.send(1, b"", (fd, fd))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    fill = [os.dup(fd) for _ in range(highest + 1 - nb_descriptors())]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        with pytest.raises(OSError, match="no descriptor is left"):
            far.receive(wait=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in (*fill, fd):
            os.close(each)
