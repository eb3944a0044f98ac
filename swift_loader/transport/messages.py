"""What the training process and a worker say to each other.

Down (training process to worker): `Make`, `Forget`, `SetPlan`.
Up (worker to training process): `Ready`, `StartFailed`, `Made`, `Failed`, `Skipped`, `Exhausted`.

Every `Make` is answered exactly once, by one of the last four; that one rule is what
credits, slots and restarts rest on. How they are packed stands in `swift_loader.transport.table`.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from swift_loader.order.part import Number
from swift_loader.plan import Plan
from swift_loader.transport.table import message

__all__ = [
    "BadSample",
    "ErrorReport",
    "Exhausted",
    "Failed",
    "Forget",
    "Long",
    "Made",
    "Make",
    "Message",
    "Ready",
    "SetPlan",
    "Skipped",
    "StageTimes",
    "StartFailed",
]

_MAKE = struct.Struct("<QIqqi")
_MADE = struct.Struct("<QIqqffffqqdII")


class StageTimes(NamedTuple):
    """Seconds that a worker spent on one batch, by stage.

    `slowest`: index of the sample that took longest, of `slowest_s`; -1 where they were not timed
    one by one, or have keys that are no whole numbers.
    """

    fetch_s: float
    collate_s: float
    encode_s: float
    slowest_s: float = 0.0
    slowest: int = -1


@message
class Make(NamedTuple):
    """Make batch `number` into slot `slot`. `indices` only where the order is the user's own."""

    ticket: int
    number: Number
    slot: int
    indices: bytes = b""  # see `order.keys`; or a stream's state. Empty: the plan knows

    def packed(self) -> bytes:
        """For `swift_loader.transport.table`."""
        ticket, (plan_id, epoch, k), slot, indices = self
        return _MAKE.pack(ticket, plan_id, epoch, k, slot) + indices

    @classmethod
    def unpacked(cls, payload: bytes) -> Make:
        """What was packed."""
        ticket, plan_id, epoch, k, slot = _MAKE.unpack_from(payload)
        return cls(ticket, Number(plan_id, epoch, k), slot, payload[_MAKE.size :])


@message
@dataclass(frozen=True, slots=True)
class Forget:
    """Answer these tickets with `Skipped` unless they are made already."""

    tickets: frozenset[int]


@message
@dataclass(frozen=True, slots=True)
class SetPlan:
    """From now on numbers with this `plan_id` mean this plan."""

    plan_id: int
    plan: Plan


@message
@dataclass(frozen=True, slots=True)
class Long:
    """A message of this `kind` that is too long for a socket: its payload lies in the memory whose
    descriptor comes along.
    """

    kind: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that raised and was skipped or replaced."""

    index: Any  # the key, where it is plain data: else its text
    error: str
    replaced: bool


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """An exception on its way to the training process.

    `exception` is its pickle (original type), or None where it can't be pickled.
    """

    exception: bytes | None
    type_name: str
    message: str
    traceback: str
    doing: str
    indices: tuple[Any, ...] = ()


@message
@dataclass(frozen=True, slots=True)
class Ready:
    """The dataset is built. `nb_samples` is None for a stream; `lengths` are of its sources."""

    nb_samples: int | None
    dataset_name: str
    lengths: tuple[int, ...] = ()


@message
@dataclass(frozen=True, slots=True)
class StartFailed:
    """The dataset could not be built; the worker ends after this."""

    report: ErrorReport


@message
class Made(NamedTuple):
    """A batch is in its slot: `used_bytes` of it.

    `slot_bytes` > 0 says that a descriptor of a new, larger region for the slot came along.
    `skeleton` is what the codec needs beside the slot; it lies at the end of the used bytes
    (`skeleton_bytes` long) when it is too long for a message.
    """

    ticket: int
    nb_samples: int
    used_bytes: int
    slot_bytes: int
    times: StageTimes
    skeleton: bytes
    skeleton_bytes: int = 0
    bad: tuple[BadSample, ...] = ()
    made_at_s: float = 0.0  # `time.perf_counter`, which all processes of a machine share
    state: bytes = b""  # where a stream stands after this batch, if its dataset can tell

    def packed(self) -> bytes:
        """For `swift_loader.transport.table`."""
        ticket, nb_samples, used, slot_bytes, times, skeleton, in_slot, bad, made_at_s, state = self
        told = pickle.dumps(bad, 5) if bad else b""
        numbers = ticket, nb_samples, used, slot_bytes, *times, in_slot, made_at_s
        return _MADE.pack(*numbers, len(told), len(state)) + told + state + skeleton

    @classmethod
    def unpacked(cls, payload: bytes) -> Made:
        """What was packed."""
        ticket, nb_samples, used, slot_bytes, *times, in_slot, made_at_s, nb_bad, nb_state = (
            _MADE.unpack_from(payload)
        )
        start = _MADE.size
        bad: tuple[BadSample, ...] = ()
        state = b""
        if nb_bad:
            bad = pickle.loads(payload[start : start + nb_bad])
            start += nb_bad
        if nb_state:
            state = payload[start : start + nb_state]
            start += nb_state
        return cls(
            ticket,
            nb_samples,
            used,
            slot_bytes,
            StageTimes(*times),
            payload[start:],
            in_slot,
            bad,
            made_at_s,
            state,
        )


@message
@dataclass(frozen=True, slots=True)
class Failed:
    """The batch can't be made: its samples, the collate function or the codec raised."""

    ticket: int
    report: ErrorReport


@message
@dataclass(frozen=True, slots=True)
class Skipped:
    """The batch was not made, as asked by `Forget`."""

    ticket: int


@message
@dataclass(frozen=True, slots=True)
class Exhausted:
    """There is no such batch: the worker's shard of the stream has ended before it.

    `state`: where the stream stands then, if its dataset can tell.
    """

    ticket: int
    state: bytes = b""


Message = Make | Forget | SetPlan | Long | Ready | StartFailed | Made | Failed | Skipped | Exhausted
