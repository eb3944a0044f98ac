"""Calls of functions, in the shape of a dataset: so that a worker makes them as it makes batches.

The "indices" of an order are the bytes of a serialized call, eight at a time; the "batch" is what
came of it. An object that is to stay with the worker is known by how it is made, so every worker of
an endpoint has it, and one that replaces a dead one too.
"""

from __future__ import annotations

import operator
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from swift_loader.batch.shipping import pack, unpack
from swift_loader.transport.messages import ErrorReport
from swift_loader.worker.faults import report
from swift_loader.worker.recipe import Recipe

__all__ = ["CALLS", "Outcome", "RRef", "words_of"]

_WORD_BYTES = 8
_MOST_BYTES = 8 << 20

_kept: dict[str, Any] = {}  # in a worker: objects by the name of their `RRef`


@dataclass(frozen=True)
class Outcome:
    """What came of a call: a value, or an error."""

    value: Any = None
    fault: ErrorReport | None = None


class RRef:
    """A reference to an object that workers hold. As an argument of a call it is that object."""

    def __init__(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        self._name = secrets.token_hex(8)
        self._data = _bytes_of(func, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _object_of, (self._name, self._data)


class Calls:
    """The dataset: sample `(all words of a call)` is its outcome."""

    def __len__(self) -> int:
        return 2**62

    def __getitems__(self, words: Sequence[int]) -> list[Outcome]:
        try:
            return [Outcome(_call(np.array(words, "<i8").tobytes()))]
        except Exception as error:  # noqa: BLE001 - it goes to the caller
            return [Outcome(fault=report(error, "running a call"))]

    def __getitem__(self, index: int) -> Outcome:
        raise TypeError("a call is more than one word")


def words_of(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
    """A call, serialized to whole words.

    Raises `ShippingError` when something in it can't travel, `ValueError` when it is too long.
    """
    data = _bytes_of(func, args, kwargs)
    if len(data) > _MOST_BYTES:
        raise ValueError(
            f"the function and its arguments are {len(data):,} bytes; {_MOST_BYTES:,} are the "
            "most. Large things belong into a dataset"
        )
    return data + bytes(-len(data) % _WORD_BYTES)


def _bytes_of(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
    parts = {"func": func, "args": tuple(args), "kwargs": dict(kwargs)}
    return bytes(pack(parts, elsewhere=True))


def _call(data: bytes) -> Any:
    parts = unpack(memoryview(bytearray(data)))
    return parts["func"](*parts["args"], **parts["kwargs"])


def _object_of(name: str, data: bytes) -> Any:
    """In a worker, when an `RRef` arrives among the arguments: the object, made if it is new."""
    if name not in _kept:
        _kept[name] = _call(data)
    return _kept[name]


#: what a worker needs to make calls
CALLS = Recipe(
    dataset_class=Calls,
    dataset_kwargs={},
    collate_fn=operator.itemgetter(0),
    batch_encoder=None,
    worker_init_fn=None,
    on_error="raise",
    threads_per_worker=1,
)
