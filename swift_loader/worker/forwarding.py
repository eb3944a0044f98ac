"""What workers print to stderr goes on to this process's stderr, which may be a pipe nobody reads.

Nothing waits for a reader: what does not fit is kept, up to a bound, and what is beyond is dropped.
"""

from __future__ import annotations

import os
import selectors
import stat
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Forwarding"]

_KEPT_BYTES = 1 << 20
_FD = 2


class Forwarding:
    """Writes to stderr; `selector` tells it when there is room again."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._fd = _without_waiting(_FD)
        self._kept = bytearray()
        self._watched = False

    def write(self, data: bytes) -> None:
        """Pass `data` on, now or later."""
        if len(self._kept) + len(data) <= _KEPT_BYTES:
            self._kept += data
        self._on_room()

    def _on_room(self) -> None:
        while self._kept:
            try:
                del self._kept[: os.write(self._fd, self._kept)]
            except BlockingIOError:
                break
            except OSError:  # nobody reads it any more
                self._kept.clear()
        self._watch(bool(self._kept))

    def _watch(self, wanted: bool) -> None:
        if wanted == self._watched:
            return
        self._watched = wanted
        if wanted:
            on_room: Callable[[], None] = self._on_room
            self._selector.register(self._fd, selectors.EVENT_WRITE, on_room)
        else:
            self._selector.unregister(self._fd)

    def leave(self) -> None:
        """In a process that was forked off: close what is not stderr itself."""
        if self._fd != _FD:
            os.close(self._fd)


def _without_waiting(fd: int) -> int:
    """A descriptor of the same pipe or terminal that never waits; `fd` itself where there is none.

    It is opened anew, as not to wait is a property that all processes with `fd` would share.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with suppress(OSError):  # another user's terminal, or no /proc
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{fd}", flags)
    return fd
