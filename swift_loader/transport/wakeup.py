"""A socket pair by which one thread, or a signal handler, wakes another that waits on descriptors.

A wake-up is a fact and no message: however often `wake` was called, one `clear` takes notice.
"""

from __future__ import annotations

import contextlib
import socket

__all__ = ["Wakeup"]


class Wakeup:
    """Readable from `wake` until `clear`. Can be registered with `select` and ZeroMQ's pollers."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)

    def fileno(self) -> int:
        """What becomes readable."""
        return self._read.fileno()

    @property
    def signal_fd(self) -> int:
        """For `signal.set_wakeup_fd`: every signal wakes."""
        return self._write.fileno()

    def wake(self) -> None:
        """Make it readable. From any thread, and after `close` too, when nobody waits any more."""
        with contextlib.suppress(OSError):  # full: it is readable already
            self._write.send(b"\0")

    def clear(self) -> None:
        """Take notice: it is not readable until the next `wake`. Empty or closed is no error."""
        with contextlib.suppress(OSError):
            self._read.recv(4096)

    def close(self) -> None:
        """Whoever waits should be woken before. May be called again."""
        self._read.close()
        self._write.close()
