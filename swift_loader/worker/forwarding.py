"""What workers print goes on to this process's stdout and stderr, which may be pipes nobody reads.

Nothing waits for a reader: what does not fit is kept, up to a bound. What is beyond that is
dropped, and a line says so where it was.
"""

from __future__ import annotations

import os
import selectors
import stat
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Forwarding", "is_stream"]

_KEPT_BYTES = 1 << 20


class Forwarding:
    """Writes to `stream`, 1 or 2; `selector` tells it when there is room again."""

    def __init__(self, selector: selectors.BaseSelector, stream: int) -> None:
        self._selector = selector
        self._stream = stream
        self._fd = _without_waiting(stream)
        self._kept = bytearray()
        self._nb_dropped = 0  # bytes, since the last that was kept
        self._watched = False

    def write(self, data: bytes) -> None:
        """Pass `data` on, now or later."""
        if len(self._kept) + len(data) > _KEPT_BYTES:
            self._nb_dropped += len(data)
        else:
            if self._nb_dropped:
                note = f"\n[{self._nb_dropped:,} bytes that workers printed were dropped here]\n"
                self._kept += note.encode()
                self._nb_dropped = 0
            self._kept += data
        self._on_room()

    def _on_room(self) -> None:
        while self._kept:
            try:
                del self._kept[: os.write(self._fd, self._kept)]
            except BlockingIOError:
                break
            except OSError:  # nobody reads it any more, or its disk is full
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
        if self._fd != self._stream:
            os.close(self._fd)


def is_stream(fd: int) -> bool:
    """Whether a standard stream is open, and not something else in its place."""
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


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
