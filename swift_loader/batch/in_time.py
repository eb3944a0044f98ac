"""Code of the user's that an error report runs, with a bound on how long the report waits for it.

It runs in a thread. What takes longer is left to itself there: nothing can end it. C code that
holds the interpreter's lock can't be left, so whoever gives such a task bounds it by size.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Generic, TypeVar

__all__ = ["InTime", "LateError"]

T = TypeVar("T")

_MOST_LATE = 32  # threads that were left and still run


class LateError(Exception):
    """What was asked for did not come in time."""


class InTime:
    """All the waiting together takes no more than `within_s`; one task at most half of the rest."""

    def __init__(self, within_s: float) -> None:
        self._ends_s = time.monotonic() + within_s

    def run(self, task: Callable[[], T]) -> T:
        """What `task` returns. Raises what it raises, and `LateError`."""
        waits_s = (self._ends_s - time.monotonic()) / 2
        _late[:] = [thread for thread in _late if thread.is_alive()]
        if waits_s < 0.001 or len(_late) >= _MOST_LATE:
            raise LateError
        call = _Call(task)
        thread = threading.Thread(target=call, name="swift_loader error report", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads can be had
            return task()
        thread.join(waits_s)
        if thread.is_alive():
            _late.append(thread)
            raise LateError
        return call.result()


class _Call(Generic[T]):
    def __init__(self, task: Callable[[], T]) -> None:
        self._task = task
        self._context = copy_context()
        self._given: list[T] = []
        self._error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self._given.append(self._context.run(self._task))
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            self._error = error

    def result(self) -> T:
        error, self._error = self._error, None  # or the two would hold each other
        if error is not None:
            raise error
        return self._given.pop()


_late: list[threading.Thread] = []
