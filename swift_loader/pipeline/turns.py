"""Training threads that read what workers send, there being no reader threads: one at a time.

A thread that needs a batch reads, if nobody else does, or waits for the one that does. Role: part
of a shell, whose lock it is given; it reads without the lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from swift_loader.pipeline.link import Event, Link
from swift_loader.pipeline.reader import Waiter

__all__ = ["Turns"]

# A thread reads when nothing is ready; and else so often, as workers that have answered are not
# given more before that is read.
_LOOK_S = 0.001


Handle = Callable[[Link, Sequence[Event]], None]


class Turns:
    """`arrived`: is notified, by whoever handles messages, when some were. `waiter`: None where
    reader threads read, so that everybody waits for them.
    """

    def __init__(self, arrived: threading.Condition, waiter: Waiter | None) -> None:
        self._arrived = arrived
        self._waiter = waiter
        self._reading = False  # a thread waits for messages
        self._nb_waiting = 0  # others, which wait for it
        self._look_at_s = 0.0

    def may_read(self, wait_s: float) -> bool:
        """Under the lock: whether it is for this thread to `read`. Else something has come by now,
        or so long has passed.
        """
        self._nb_waiting += 1  # before the look at `_reading`: `read` does it the other way round
        try:
            if self._waiter is None or self._reading:
                self._arrived.wait(min(wait_s, threading.TIMEOUT_MAX))
                return False
            self._reading = True
            return True
        finally:
            self._nb_waiting -= 1

    def read(self, wait_s: float, handle: Handle) -> None:
        """Wait for messages and `handle` them, this thread's turn having come."""
        assert self._waiter is not None
        try:
            for link, events in self._waiter.wait(wait_s):
                handle(link, events)
        finally:
            self._look_at_s = time.monotonic() + _LOOK_S
            self._reading = False
            if self._nb_waiting:  # another thread may have to read
                with self._arrived:
                    self._arrived.notify_all()

    def look(self, handle: Handle) -> None:
        """`handle` what has come, if it is time and nobody else does."""
        if self._waiter is None or time.monotonic() <= self._look_at_s:
            return
        with self._arrived:
            if self._reading:
                return
            self._reading = True
        self.read(0.0, handle)
