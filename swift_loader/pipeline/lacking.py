"""What can't be had just now: descriptors, processes or memory. Pure.

A worker that can't be started for want of them is tried again a little later, while the others go
on. Only where no batch has come for seconds is it an error, which says what to do.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from swift_loader.errors import NoRoomError
from swift_loader.pipeline.actions import Action, Launch, Tell

__all__ = ["Lacking", "Launches", "is_lack", "told"]

_AGAIN_S = 0.5
_TRIES = 10
_ERRORS = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


def is_lack(error: BaseException) -> bool:
    """Whether the system had no room, which may be otherwise in a moment."""
    return isinstance(error, NoRoomError) or (isinstance(error, OSError) and error.errno in _ERRORS)


@contextmanager
def told() -> Iterator[None]:
    """What is lacking inside is a `NoRoomError`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, NoRoomError) or not is_lack(error):
            raise
        raise NoRoomError(
            f"this process has no room for what it must start: {error}. Raise the limit (`ulimit "
            "-n` for descriptors, `ulimit -u` for processes), or give fewer workers"
        ) from error


class Lacking:
    """How often each worker was tried in vain, with no batch made in between by any."""

    def __init__(self) -> None:
        self._tries: Counter[int] = Counter()

    def over(self) -> None:
        """A batch was made."""
        if self._tries:
            self._tries.clear()

    def launch(
        self, worker: int, why: str, now_s: float, actions: list[Action]
    ) -> NoRoomError | None:
        """There was no room to start `worker`: adds that it is tried later.

        Returns the error when it was tried often enough.
        """
        self._tries[worker] += 1
        if self._tries[worker] > _TRIES:
            return NoRoomError(
                f"worker {worker} can't be started, and no batch came for {_TRIES * _AGAIN_S:g} s: "
                f"{why}. Raise the limit (`ulimit -n` for descriptors, `ulimit -u` for processes), "
                "or let this process hold fewer open files; fewer workers need less"
            )
        actions.append(Launch(worker, now_s + _AGAIN_S))
        if self._tries[worker] == 1:
            story = f"worker {worker} can't be started now, which is tried again: {why}"
            actions.append(Tell("slow", worker, story))
        return None


class Launches:
    """Workers that are to be started later, and when."""

    def __init__(self) -> None:
        self._at_s: dict[int, float] = {}
        self.next_s = inf  # when the next one is due; infinite: there is none

    def put(self, worker: int, at_s: float) -> None:
        """Start it then, and not before."""
        self._at_s[worker] = at_s
        self.next_s = min(self._at_s.values())

    def due(self, now_s: float) -> list[int]:
        """Those whose time has come; they are forgotten here."""
        due = [worker for worker, at_s in self._at_s.items() if at_s <= now_s]
        for worker in due:
            del self._at_s[worker]
        self.next_s = min(self._at_s.values(), default=inf)
        return due
