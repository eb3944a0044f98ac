"""All messages that go over a `Channel`: who sends each, its kind number, and how it is packed.

A message is a class of its own, which stands where it is used: those of workers in `messages`, the
zygote's in `swift_loader.worker.zygote`, those of data pipes in
`swift_loader.dataloader2.workers.wire`, a producer's in `swift_loader.sharing.messages`, those of a
cache in `swift_loader.cache.messages`. The decorator `message` ties a class to the row that has its
name.

The messages of each batch are packed by `struct`, by the methods ``packed`` and ``unpacked`` of
their classes, and are named tuples: building one costs a third of what a frozen dataclass does. The
others are rare and pickled. All ends of channels are processes of one user, on a socket pair or on
a socket whose peer the kernel has vouched for, so pickle is fine here. Endpoints are not: they
speak `swift_loader.remote.messages`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from swift_loader.errors import LoaderError

__all__ = ["TABLE", "MessageError", "Row", "message", "pack", "unpack"]

T = TypeVar("T")


class MessageError(LoaderError, ValueError):
    """What came over a channel is no message that this process knows."""


class Row(NamedTuple):
    """One message."""

    kind: int
    name: str
    sender: str
    receiver: str
    packing: Literal["struct", "pickle"] = "pickle"


_TRAINING, _WORKER, _ZYGOTE = "training process", "worker", "zygote"
_FEED, _SERVER = "feed", "server"  # the two ends of a line of data pipes
_PRODUCER, _CONSUMER = "producer", "consumer"
_CLIENT, _STORE = "worker or training process", "store"  # of a cache

TABLE = (
    # batches, and the chunks of data pipes
    Row(1, "Make", _TRAINING, _WORKER, "struct"),
    Row(2, "Made", f"{_WORKER}, {_SERVER}", f"{_TRAINING}, {_FEED}", "struct"),
    Row(3, "Forget", _TRAINING, _WORKER),
    Row(4, "SetPlan", _TRAINING, _WORKER),
    Row(5, "Ready", _WORKER, _TRAINING),
    Row(6, "StartFailed", _WORKER, _TRAINING),
    Row(7, "Failed", f"{_WORKER}, {_SERVER}", f"{_TRAINING}, {_FEED}"),
    Row(8, "Skipped", f"{_WORKER}, {_SERVER}", f"{_TRAINING}, {_FEED}"),
    Row(9, "Exhausted", _WORKER, _TRAINING),
    Row(10, "Long", _TRAINING, _WORKER),
    # the life of workers
    Row(16, "Spawn", _TRAINING, _ZYGOTE),
    Row(17, "Started", _ZYGOTE, _TRAINING),
    Row(18, "Exited", _ZYGOTE, _TRAINING),
    Row(19, "ImportScript", _TRAINING, _ZYGOTE),
    Row(20, "Rest", _TRAINING, _ZYGOTE),
    # data pipes
    Row(32, "Begin", _TRAINING, f"{_WORKER}, dispatching process"),
    Row(33, "Connect", _TRAINING, f"{_WORKER}, dispatching process"),
    Row(34, "Give", _FEED, _SERVER, "struct"),
    # a producer and its consumers
    Row(48, "Batch", _PRODUCER, _CONSUMER, "struct"),
    Row(49, "Took", _CONSUMER, _PRODUCER, "struct"),
    Row(50, "Join", _CONSUMER, _PRODUCER),
    Row(51, "Admit", _PRODUCER, _CONSUMER),
    Row(52, "EpochBegins", _PRODUCER, _CONSUMER),
    Row(53, "EpochEnds", _PRODUCER, _CONSUMER),
    Row(54, "Region", _PRODUCER, _CONSUMER),
    Row(55, "ForgetRegion", _PRODUCER, _CONSUMER),
    Row(56, "Leave", _CONSUMER, _PRODUCER),
    Row(57, "Dropped", _PRODUCER, _CONSUMER),
    Row(58, "Ended", _PRODUCER, _CONSUMER),
    # the store of a cache
    Row(64, "Ask", _CLIENT, _STORE, "struct"),
    Row(66, "Answer", _STORE, _CLIENT, "struct"),
    Row(67, "Room", _CLIENT, _STORE, "struct"),
    Row(68, "Placed", _STORE, _CLIENT, "struct"),
    Row(69, "Keep", _CLIENT, _STORE, "struct"),
    Row(70, "Done", _CLIENT, _STORE, "struct"),
    Row(71, "Enter", _CLIENT, _STORE),
    Row(72, "Entered", _STORE, _CLIENT),
    Row(73, "Course", _CLIENT, _STORE),
    Row(74, "Trouble", _CLIENT, _STORE),
    Row(75, "Heard", _STORE, _CLIENT),
    Row(76, "Tell", _CLIENT, _STORE),
    Row(77, "Told", _STORE, _CLIENT),
)

_ROW_OF = {row.name: row for row in TABLE}
_PACKING: dict[type, tuple[int, Callable[[Any], bytes]]] = {}
_UNPACKING: dict[int, Callable[[bytes], Any]] = {}


def message(cls: type[T]) -> type[T]:
    """Class decorator: the row of the table that has the name of `cls` is about `cls`."""
    row = _ROW_OF[cls.__name__]
    if row.packing == "struct":
        _PACKING[cls] = row.kind, cls.packed  # type: ignore[attr-defined]
        _UNPACKING[row.kind] = cls.unpacked  # type: ignore[attr-defined]
    else:
        _PACKING[cls] = row.kind, partial(pickle.dumps, protocol=5)
        _UNPACKING[row.kind] = partial(_unpickled, cls)
    return cls


def pack(message: Any) -> tuple[int, bytes]:
    """``(kind, payload)`` of the frame that carries `message`, whose class is in the table."""
    kind, packed = _PACKING[type(message)]
    return kind, packed(message)


def unpack(kind: int, payload: bytes) -> Any:
    """The message of a frame. Raises `MessageError`."""
    try:
        return _UNPACKING[kind](payload)
    except Exception as error:
        raise MessageError(f"a frame of kind {kind} that is no message ({error!r})") from error


def _unpickled(cls: type[T], payload: bytes) -> T:
    told = pickle.loads(payload)
    if type(told) is not cls:
        raise TypeError(f"{type(told).__name__} in place of {cls.__name__}")
    return told
