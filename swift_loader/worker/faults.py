"""An exception's way from a worker to the training loop: type, traceback and place arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any

import numpy as np

from swift_loader.batch.exceptions import put_together, tell
from swift_loader.errors import WorkerError
from swift_loader.transport.messages import ErrorReport

__all__ = ["describe_indices", "plain_key", "report", "revive"]

_SHOWN_INDICES = 16


def report(error: BaseException, doing: str, indices: Iterable[Any] = ()) -> ErrorReport:
    """What is sent of `error`. Never raises, never large or late: see `batch.exceptions`."""
    told = tell(error)
    return ErrorReport(
        exception=told.exception,
        type_name=type(error).__qualname__,
        message=told.message,
        traceback=told.traceback,
        doing=doing,
        indices=tuple(map(plain_key, indices)),
    )


def revive(fault: ErrorReport, where: str) -> BaseException:
    """The original exception with a `WorkerError` as its cause, which has the original's cause.

    The `WorkerError` itself where the type can't travel, and where raising it would mean something
    else in the training loop: `StopIteration` would end it silently, `SystemExit` and others that
    are no `Exception` more than it. The original is its cause then.
    """
    what = f"{where}, while {fault.doing}"
    if fault.indices:
        what += f" {describe_indices(fault.indices)}"
    story = f"{what}: {fault.type_name}: {fault.message}\n\nIn the worker:\n{fault.traceback}"
    cause = WorkerError(story)
    error = None if fault.exception is None else put_together(fault.exception)
    if error is None:
        return cause
    if isinstance(error, StopIteration) or not isinstance(error, Exception):
        cause.__cause__ = error
        return cause
    cause.__cause__, cause.__context__ = error.__cause__, error.__context__
    cause.__suppress_context__ = error.__suppress_context__
    error.__cause__ = cause
    return error


def plain_key(key: Any) -> Any:
    """A key of a dataset as it is where it is plain data, such as a number; else its text."""
    if type(key) in (int, str, float, bool, NoneType):
        return key
    if type(key) in (tuple, list) and len(key) <= _SHOWN_INDICES:
        return type(key)(map(plain_key, key))
    return int(key) if isinstance(key, np.integer) else f"{key!r:.200}"


def describe_indices(indices: Sequence[Any]) -> str:
    """``sample 7`` or ``samples [1, 2, 3, … 64 in all]``."""
    if len(indices) == 1:
        return f"sample {indices[0]!r}"
    shown = ", ".join(repr(i) for i in indices[:_SHOWN_INDICES])
    more = f", … {len(indices)} in all" if len(indices) > _SHOWN_INDICES else ""
    return f"samples [{shown}{more}]"
