"""What the store of a cache and its clients say to each other.

Client (a worker, or a training process) to store: `Enter`, `Course`, `Ask`, `Room`, `Keep`, `Done`,
`Trouble`, `Tell`. Store to client: `Entered` (with the memory's descriptor), `Answer` to `Ask`,
`Placed` to `Room`, `Heard` to `Trouble`, `Told` to `Tell`.

Rows of numbers travel as int64 arrays; their columns stand at each message. A key is a sample's
number, or for what a data set keeps by hand a negative number made of its key.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from swift_loader.cache.naming import StoreName
from swift_loader.plan import Plan
from swift_loader.telemetry.cache_stats import CacheStats
from swift_loader.transport.table import message

__all__ = [
    *("BUSY", "CLAIMING", "DAMAGED", "IN_FILE", "IN_MEMORY", "LOOKING", "TO_MAKE", "UNPLANNED"),
    *("GOING_ON", "WAITING", "Answer", "Ask", "Course", "Done", "Enter", "Entered"),
    *("Heard", "Keep", "Placed"),
    *("Room", "Rows", "Tell", "Told", "Trouble"),
]

Rows = NDArray[np.int64]
T = TypeVar("T", bound="_Table")

TO_MAKE, IN_MEMORY, IN_FILE, BUSY = range(4)
"""What an `Answer` says of a key: the client makes it now, and owes a `Keep`; it lies in memory, or
in a file; somebody else makes it."""
UNPLANNED = -1
"""The epoch of what is asked for outside of any batch."""

CLAIMING, LOOKING, WAITING, GOING_ON = range(4)
"""How a client asks. It claims what nobody has or makes, which it owes then. Or it only looks, for
what is wanted next: what isn't there is `BUSY` in the answer, so that lays nothing on the client.
Or it claims, and the answer comes once none of the keys is at work elsewhere, or one is to be made.
Or it has no keys, and only says how far it is, as all that it used lies where it is for good: there
is no answer.
"""
DAMAGED = -2
"""The checksum in a row of `Keep` that says: what lies in the file is damaged."""

_HEAD = struct.Struct("<QQqqqqBB")
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

    `place`: of the client's row, see `swift_loader.cache.tallies`. `note`: why there are no files,
    where some were wanted.
    """

    span: int
    folder: str | None
    place: int
    note: str = ""


@message
@dataclass(frozen=True, slots=True)
class Course:
    """This is the plan of ordinary epochs."""

    plan: Plan


@message
class Ask(NamedTuple):
    """Where are these keys? They are for batch `k` of `epoch`.

    `done`: a serial as in `Done`, or 0.
    `variant`: what the data set was told (`call_dataset`); samples of different ones differ.
    `ahead`: the batch isn't due yet, and nothing is looked at.
    `how`: `CLAIMING`, `LOOKING`, `WAITING` or `GOING_ON`.
    """

    serial: int
    done: int
    variant: int
    epoch: int
    k: int
    consumer: int
    ahead: bool
    keys: Rows
    how: int = CLAIMING

    def packed(self) -> bytes:
        """For `swift_loader.transport.table`."""
        *head, keys, how = self
        return _HEAD.pack(*head, how) + keys.tobytes()

    @classmethod
    def unpacked(cls, payload: bytes) -> Ask:
        """What was packed."""
        serial, done, variant, epoch, k, consumer, ahead, how = _HEAD.unpack_from(payload)
        keys = np.frombuffer(payload, np.int64, -1, _HEAD.size)
        return cls(serial, done, variant, epoch, k, consumer, bool(ahead), keys, how)


class _Numbered(NamedTuple):
    serial: int
    rows: Rows


class _Table(_Numbered):
    """Rows of so many columns."""

    __slots__ = ()
    columns: ClassVar[int]

    def packed(self) -> bytes:
        """For `swift_loader.transport.table`."""
        return _SERIAL.pack(self.serial) + self.rows.tobytes()

    @classmethod
    def unpacked(cls: type[T], payload: bytes) -> T:
        """What was packed."""
        (serial,) = _SERIAL.unpack_from(payload)
        rows = np.frombuffer(payload, np.int64, -1, _SERIAL.size)
        return cls(serial, rows.reshape(-1, cls.columns))


@message
class Answer(_Table):
    """A row a key: what of it (`IN_MEMORY`, …), segment, offset, bytes of numbers and skeleton,
    and the checksum of what must be checked before it is used, else -1.

    What lies in memory stays there until `Done` with the same serial.
    """

    __slots__ = ()
    columns = 6


@message
class Room(_Table):
    """Where may these lie, samples for one batch? A row each: variant, key, epoch and `k` of that
    (as in `Ask`), `ahead`, bytes of numbers and skeleton, microseconds that making it took.
    """

    __slots__ = ()
    columns = 8


@message
class Placed(_Table):
    """A row each: offset in memory, segment, offset in its file; -1 where it is not kept there. And
    whether that memory is there already, so that it is best written through the mapping.
    """

    __slots__ = ()
    columns = 4


@message
class Keep(_Table):
    """These are written, or will not be: a row each: variant, key, whether it lies in memory,
    whether it lies in its file, the checksum or `DAMAGED`.
    """

    __slots__ = ()
    columns = 5


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
