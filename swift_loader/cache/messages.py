"""What the store of a cache and its clients say to each other.

Client (a worker, or a training process) to store: `Enter`, `Course`, `Look`, `Ask`, `Wait`, `Room`,
`Keep`, `Done`, `Trouble`, `Tell`. Store to client: `Entered` (with the memory's descriptor),
`Answer` to `Look`, `Ask` and `Wait`, `Placed` to `Room`, `Heard` to `Trouble`, `Told` to `Tell`.

Rows of numbers travel as int64 arrays; their columns stand at each message. A key is a sample's
number, or for what a data set keeps by hand a negative number made of its key.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from swift_loader.cache.naming import StoreName
from swift_loader.plan import Plan
from swift_loader.telemetry.stats import CacheStats
from swift_loader.transport.table import message

__all__ = [
    *("BUSY", "IN_FILE", "IN_MEMORY", "TO_MAKE", "UNPLANNED", "Answer", "Ask", "Course", "Done"),
    *("Enter", "Entered", "Heard", "Keep", "Look", "Placed", "Room", "Rows", "Tell", "Told"),
    "Trouble",
    "Wait",
]

Rows = NDArray[np.int64]

TO_MAKE, IN_MEMORY, IN_FILE, BUSY = range(4)
"""What an `Answer` says of a key: the client makes it now, and owes a `Keep`; it lies in memory, or
in a file; somebody else makes it."""
UNPLANNED = -1
"""The epoch of what is asked for outside of any batch."""

_HEAD = struct.Struct("<QQqqqqB")
_SERIAL = struct.Struct("<Q")


@message
@dataclass(frozen=True, slots=True)
class Enter:
    """Let me in. `name` holds the bounds, which count where the store is new."""

    name: StoreName
    consumer: int


@message
@dataclass(frozen=True, slots=True)
class Entered:
    """Welcome: the memory is `span` bytes, and `folder` is where files lie, if there are any.

    `note`: why there are none, where some were wanted.
    """

    span: int
    folder: str | None
    note: str = ""


@message
@dataclass(frozen=True, slots=True)
class Course:
    """This is the plan of ordinary epochs."""

    plan: Plan


def _asked(
    serial: int, done: int, variant: int, epoch: int, k: int, consumer: int, ahead: bool, keys: Rows
) -> bytes:
    return _HEAD.pack(serial, done, variant, epoch, k, consumer, ahead) + keys.tobytes()


def _as_asked(payload: bytes) -> tuple[int, int, int, int, int, int, bool, Rows]:
    serial, done, variant, epoch, k, consumer, ahead = _HEAD.unpack_from(payload)
    keys = np.frombuffer(payload, np.int64, -1, _HEAD.size)
    return serial, done, variant, epoch, k, consumer, bool(ahead), keys


@message
class Ask(NamedTuple):
    """Where are these keys? They are for batch `k` of `epoch`.

    `done`: a serial as in `Done`, or 0.
    `variant`: what the data set was told (`call_dataset`); samples of different ones differ.
    `ahead`: the batch isn't due yet, and nothing is looked at.
    """

    serial: int
    done: int
    variant: int
    epoch: int
    k: int
    consumer: int
    ahead: bool
    keys: Rows

    def packed(self) -> bytes:
        """For `swift_loader.transport.table`."""
        return _asked(*self)

    @classmethod
    def unpacked(cls, payload: bytes) -> Ask:
        """What was packed."""
        return cls(*_as_asked(payload))


@message
class Look(NamedTuple):
    """Where are these keys, which are wanted next? What isn't there is `BUSY` in the answer.

    So it lays nothing on the client, which asks in its turn for what was not there.
    """

    serial: int
    done: int
    variant: int
    epoch: int
    k: int
    consumer: int
    ahead: bool
    keys: Rows

    def packed(self) -> bytes:
        """For `swift_loader.transport.table`."""
        return _asked(*self)

    @classmethod
    def unpacked(cls, payload: bytes) -> Look:
        """What was packed."""
        return cls(*_as_asked(payload))


@message
class Wait(NamedTuple):
    """Answer the same once none of these is at work elsewhere, or one is to be made."""

    serial: int
    done: int
    variant: int
    epoch: int
    k: int
    consumer: int
    ahead: bool
    keys: Rows

    def packed(self) -> bytes:
        """For `swift_loader.transport.table`."""
        return _asked(*self)

    @classmethod
    def unpacked(cls, payload: bytes) -> Wait:
        """What was packed."""
        return cls(*_as_asked(payload))


def _unpacked(payload: bytes, columns: int) -> tuple[int, Rows]:
    (serial,) = _SERIAL.unpack_from(payload)
    return serial, np.frombuffer(payload, np.int64, -1, _SERIAL.size).reshape(-1, columns)


@message
class Answer(NamedTuple):
    """A row a key: what of it (`IN_MEMORY`, …), segment, offset, bytes of numbers and skeleton,
    and the checksum of what must be checked before it is used, else -1.

    What lies in memory stays there until `Done` with the same serial.
    """

    serial: int
    rows: Rows

    def packed(self) -> bytes:
        """For `swift_loader.transport.table`."""
        return _SERIAL.pack(self.serial) + self.rows.tobytes()

    @classmethod
    def unpacked(cls, payload: bytes) -> Answer:
        """What was packed."""
        return cls(*_unpacked(payload, 6))


@message
class Room(NamedTuple):
    """Where may these lie, samples for one batch? A row each: variant, key, epoch and `k` of that
    (as in `Ask`), `ahead`, bytes of numbers and skeleton, microseconds that making it took.
    """

    serial: int
    rows: Rows

    def packed(self) -> bytes:
        """For `swift_loader.transport.table`."""
        return _SERIAL.pack(self.serial) + self.rows.tobytes()

    @classmethod
    def unpacked(cls, payload: bytes) -> Room:
        """What was packed."""
        return cls(*_unpacked(payload, 8))


@message
class Placed(NamedTuple):
    """A row each: offset in memory, segment, offset in its file; -1 where it is not kept there."""

    serial: int
    rows: Rows

    def packed(self) -> bytes:
        """For `swift_loader.transport.table`."""
        return _SERIAL.pack(self.serial) + self.rows.tobytes()

    @classmethod
    def unpacked(cls, payload: bytes) -> Placed:
        """What was packed."""
        return cls(*_unpacked(payload, 3))


@message
class Keep(NamedTuple):
    """These are written, or will not be: a row each: variant, key, whether it lies in memory,
    whether it lies in its file, the checksum.
    """

    serial: int
    rows: Rows

    def packed(self) -> bytes:
        """For `swift_loader.transport.table`."""
        return _SERIAL.pack(self.serial) + self.rows.tobytes()

    @classmethod
    def unpacked(cls, payload: bytes) -> Keep:
        """What was packed."""
        return cls(*_unpacked(payload, 5))


@message
class Done(NamedTuple):
    """What `serial` asked for is not looked at any more."""

    serial: int

    def packed(self) -> bytes:
        """For `swift_loader.transport.table`."""
        return _SERIAL.pack(self.serial)

    @classmethod
    def unpacked(cls, payload: bytes) -> Done:
        """What was packed."""
        return cls(*_SERIAL.unpack(payload))


@message
@dataclass(frozen=True, slots=True)
class Trouble:
    """Files can't be written any more. Answered by `Heard`."""

    why: str


@message
@dataclass(frozen=True, slots=True)
class Heard:
    """`first`: nobody has said so before."""

    first: bool


@message
@dataclass(frozen=True, slots=True)
class Tell:
    """How is it going, for this consumer?"""

    consumer: int


@message
@dataclass(frozen=True, slots=True)
class Told:
    """The answer to `Tell`."""

    figures: CacheStats
