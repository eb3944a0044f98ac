"""An exception's way from a worker to the training loop: type, traceback and place arrive."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any

import numpy as np

from swift_loader.batch.arena import Arena
from swift_loader.batch.codec import decode, encode
from swift_loader.errors import WorkerError
from swift_loader.transport.messages import ErrorReport

__all__ = ["describe_indices", "plain_key", "report", "revive"]

_SHOWN_INDICES = 16


def report(error: BaseException, doing: str, indices: Iterable[Any] = ()) -> ErrorReport:
    """What is sent of `error`. Never raises: what can't be pickled is left out."""
    return ErrorReport(
        exception=_pickled(error),
        type_name=type(error).__qualname__,
        message=_text(error),
        traceback="".join(traceback.format_exception(type(error), error, error.__traceback__)),
        doing=doing,
        indices=tuple(map(plain_key, indices)),
    )


def revive(fault: ErrorReport, where: str) -> BaseException:
    """The original exception with a `WorkerError` as its cause, or a `WorkerError` alone.

    Alone where the type can't travel, and where raising it would mean something else in the
    training loop: `StopIteration` would end it silently, `SystemExit` the whole process.
    """
    what = f"{where}, while {fault.doing}"
    if fault.indices:
        what += f" {describe_indices(fault.indices)}"
    story = f"{what}: {fault.type_name}: {fault.message}\n\nIn the worker:\n{fault.traceback}"
    cause = WorkerError(story)
    error = _revived(fault.exception)
    if error is None or isinstance(error, StopIteration) or not isinstance(error, Exception):
        return cause
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


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - a __str__ of the user's that raises
        return f"(its __str__ raised {type(broken).__name__})"


def _pickled(error: BaseException) -> bytes | None:
    """The exception by its class, `args` and attributes: `__init__` may want other arguments."""
    state = {key: value for key, value in vars(error).items() if key != "__notes__"}
    for attributes in (state, {}):
        try:
            data = encode((type(error), error.args, attributes), Arena(None))
            if _revived(data) is not None:
                return data
        except Exception:  # noqa: BLE001, S112 - the attributes or the class can't travel
            continue
    return None


def _revived(data: bytes | None) -> BaseException | None:
    if data is None:
        return None
    try:
        kind, args, attributes = decode(data, np.empty(0, np.uint8))
    except Exception:  # noqa: BLE001 - the story still arrives, as text
        return None
    return _rebuilt(kind, args, attributes)


def _rebuilt(
    kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]
) -> BaseException:
    try:
        error = kind(*args)
    except Exception:  # noqa: BLE001 - its __init__ takes something else than `args`
        error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(attributes)
    return error
