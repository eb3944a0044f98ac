"""Programs that a data set has started, and that outlive the worker which started them.

On Linux they become children of the process that workers are forked from, which ends them: asked
to by SIGTERM, killed a second later. They stay in the training process's group, so that a terminal
still signals them. A program with a session of its own (a daemon) is meant to stay, and does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any

import psutil

__all__ = ["Strays", "die_with_parent", "wake_when_parent_ends"]

_GRACE_S = 1.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Strays:
    """Those of one process."""

    def __init__(self) -> None:
        self._ours: set[int] = set()
        self._kill_at_s: dict[int, float] = {}
        if sys.platform == "linux":
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def __len__(self) -> int:
        return len(self._kill_at_s)

    def these_are_ours(self) -> None:
        """The children of now were started here, by the script: they are no strays."""
        self._ours = {child.pid for child in psutil.Process().children()}

    def end(self, workers: Container[int]) -> None:
        """Ask all that there are to end. To be called when a child ended."""
        if sys.platform != "linux":
            return
        for child in psutil.Process().children():
            pid = child.pid
            if pid in workers or pid in self._ours or pid in self._kill_at_s:
                continue
            with suppress(ProcessLookupError):
                if os.getsid(pid) == os.getsid(0):
                    self._kill_at_s[pid] = time.monotonic() + _GRACE_S
                    os.kill(pid, signal.SIGTERM)

    def ended(self, pid: int) -> None:
        """It is gone."""
        self._kill_at_s.pop(pid, None)

    def kill_the_late(self) -> float | None:
        """Kill those whose time is over; seconds until the next is due, None without any."""
        now_s = time.monotonic()
        for pid, at_s in list(self._kill_at_s.items()):
            if at_s <= now_s:
                self._kill_at_s[pid] = now_s + _GRACE_S
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return min((at_s - now_s for at_s in self._kill_at_s.values()), default=None)


def die_with_parent(parent: int) -> None:
    """Linux: this process is killed when `parent` ends, however it does."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def wake_when_parent_ends(is_busy: Callable[[], bool]) -> None:
    """Linux: this process goes on if it is stopped (SIGSTOP) when its parent ends, and sees that.

    Where it `is_busy` with what does not look, it ends at once.
    """
    parent = os.getppid()

    def look(number: int, frame: Any) -> None:
        if is_busy() and os.getppid() != parent:
            os._exit(1)

    if sys.platform == "linux":
        signal.signal(signal.SIGCONT, look)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value)
