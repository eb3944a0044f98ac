"""Whoever waits for links hears each of them, whatever their descriptors were before."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from itertools import count

import pytest

from swift_loader.pipeline.link import Event, Running
from swift_loader.pipeline.reader import Waiter

_FREE = count(500, 10)


class Line:
    """As much of a link as is waited for: it says `Running` for each byte."""

    due_s = None

    def __init__(self, worker: int, at: int | None = None) -> None:
        self.worker = worker
        ends = socket.socketpair()
        free = next(_FREE)  # out of the way of those that were closed
        ours, theirs = (fcntl.fcntl(end, fcntl.F_DUPFD, free) for end in ends)
        for end in ends:
            end.close()
        if at is not None:  # its descriptor is to be this one
            os.dup2(ours, at)
            os.close(ours)
            ours = at
        self._ours, self._theirs = socket.socket(fileno=ours), socket.socket(fileno=theirs)
        self._ours.setblocking(False)

    def filenos(self) -> list[int]:
        return [] if self._ours.fileno() < 0 else [self._ours.fileno()]

    def say(self) -> None:
        self._theirs.send(b"x")

    def receive(self) -> list[Event]:
        try:
            return [Running(None) for _ in self._ours.recv(100)]
        except BlockingIOError:
            return []

    def close(self) -> int:
        """Its descriptor, which is free for others now."""
        number = self._ours.fileno()
        self._ours.close()
        self._theirs.close()
        return number


@pytest.fixture
def waiter() -> Iterator[Waiter]:
    waiter = Waiter()
    yield waiter
    waiter.close()


def heard(waiter: Waiter) -> list[int]:
    found: list[int] = []
    while events := waiter.wait(0.01):
        found += [link.worker for link, _ in events]
    return sorted(found)


def test_links_that_took_each_others_descriptors_are_all_heard(waiter: Waiter) -> None:
    old = [Line(worker) for worker in range(3)]
    for line in old:
        waiter.add(line)  # type: ignore[arg-type]
    waiter.wait(0.0)
    numbers = [line.close() for line in old]
    for line in old:
        waiter.discard(line)  # type: ignore[arg-type]
    new = [Line(worker, numbers[(worker + 1) % 3]) for worker in range(3)]
    for line in new:
        waiter.add(line)  # type: ignore[arg-type]
    waiter.wait(0.0)
    for line in new:
        line.say()
    assert heard(waiter) == [0, 1, 2]
    for line in new:
        line.close()
