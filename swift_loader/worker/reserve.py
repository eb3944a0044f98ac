"""Descriptors that are kept for when they are needed, whatever else this process may open."""

from __future__ import annotations

import contextlib
import os
import resource

__all__ = ["Reserve", "allow_most"]


class Reserve:
    """So many descriptors, once `refill` has said so."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._fds: list[int] = []

    def release(self) -> None:
        """Let go of them, for what is about to need them."""
        while self._fds:
            os.close(self._fds.pop())

    def refill(self) -> bool:
        """Take what is missing; False where there are not enough."""
        try:
            while len(self._fds) < self._count:
                self._fds.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # there is no room
            return False
        return True


def allow_most() -> None:
    """Raise this process's own limit of descriptors as far as the system lets it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS: "no limit" is more than it takes
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
