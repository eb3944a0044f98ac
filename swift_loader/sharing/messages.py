"""What a producer and a consumer say to each other, over one Unix socket.

Up (consumer to producer): `Join` once, then `Took`, and `Leave` at the end.
Down (producer to consumer): `Admit`; for every epoch `EpochBegins`, `Batch` ..., `EpochEnds`;
`Region` (with its descriptor) before the first batch that lies in it, `ForgetRegion` after the
last; at the end `Dropped` or `Ended`.

How they are packed stands in `swift_loader.transport.table`: both ends are processes of one user,
which the kernel vouches for before anything is read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal, NamedTuple

from swift_loader.transport.table import MessageError, message

__all__ = [
    "VERSION",
    "Admit",
    "Batch",
    "Dropped",
    "Ended",
    "EpochBegins",
    "EpochEnds",
    "ForgetRegion",
    "Join",
    "Late",
    "Leave",
    "Message",
    "Position",
    "Region",
    "Took",
]

VERSION = "1"

_BATCH = struct.Struct("<QqqqqII")
_COUNT = struct.Struct("<I")

Late = Literal["epoch", "now"]


class Position(NamedTuple):
    """A batch number: batch `k` of epoch `epoch`."""

    epoch: int
    k: int


@message
@dataclass(frozen=True, slots=True)
class EpochBegins:
    """Epoch `epoch` follows, from batch `first` on.

    `nb_batches` of the whole epoch, and `nb_samples` from `first` on; None: not known.
    """

    epoch: int
    first: int
    nb_batches: int | None
    nb_samples: int | None


@message
@dataclass(frozen=True, slots=True)
class EpochEnds:
    """The epoch is over after `nb_batches`; `following` is what comes next, for ``len``.

    `note`: see `swift_loader.sharing.notes`.
    """

    epoch: int
    nb_batches: int
    following: EpochBegins
    note: bytes = b""


@message
@dataclass(frozen=True, slots=True)
class Join:
    """The first message of a consumer. `position`: where it was, if it was here before."""

    version: str
    name: str
    late: Late
    producer: str = ""  # that `position` is about
    position: Position | None = None
    strict: bool = False  # nothing after `position` may be missing, whichever producer it is

    def check(self) -> None:
        """Raise `MessageError` unless every field is what it is to be."""
        told = self.version, self.name, self.producer, self.late
        at = self.position
        if (
            not all(type(text) is str for text in told)
            or self.late not in ("epoch", "now")
            or not (at is None or (type(at) is Position and _is_count(*at)))
        ):
            raise MessageError(f"{self!r:.200} is no way to join")


@message
@dataclass(frozen=True, slots=True)
class Admit:
    """The answer: `begins` is the epoch that the consumer will see first.

    `Took` is expected every `report_every` batches. `producer` is its identity.
    """

    begins: EpochBegins
    report_every: int
    producer: str


@message
@dataclass(frozen=True, slots=True)
class Region:
    """A descriptor comes along: region `region` of `nbytes`, on this device ("": shared memory).

    `export` is how a device's memory is opened.
    """

    region: int
    nbytes: int
    device: str = ""
    export: bytes = b""


@message
@dataclass(frozen=True, slots=True)
class ForgetRegion:
    """Nothing will lie in this region any more."""

    region: int


@message
class Batch(NamedTuple):
    """A batch: `used_bytes` of region `region`, held under `lease` until `Took` names it.

    `skeleton` is for the codec; where `skeleton_bytes` > 0 it lies at the end of the used bytes.
    `note`: see `swift_loader.sharing.notes`.
    """

    lease: int
    epoch: int
    k: int
    region: int
    used_bytes: int
    skeleton_bytes: int
    skeleton: bytes
    note: bytes = b""

    def packed(self) -> bytes:
        """For `swift_loader.transport.table`."""
        return _BATCH.pack(*self[:6], len(self.note)) + self.note + self.skeleton

    @classmethod
    def unpacked(cls, payload: bytes) -> Batch:
        """What was packed."""
        lease, epoch, k, region, used_bytes, in_region, nb_note = _BATCH.unpack_from(payload)
        note, skeleton = payload[_BATCH.size :][:nb_note], payload[_BATCH.size + nb_note :]
        return cls(lease, epoch, k, region, used_bytes, in_region, skeleton, note)


@message
class Took(NamedTuple):
    """`nb_taken` more batches have left the queue; these leases are over."""

    nb_taken: int
    leases: tuple[int, ...]

    def packed(self) -> bytes:
        """For `swift_loader.transport.table`."""
        return struct.pack(f"<I{len(self.leases)}Q", self.nb_taken, *self.leases)

    @classmethod
    def unpacked(cls, payload: bytes) -> Took:
        """What was packed."""
        nb_leases = (len(payload) - _COUNT.size) // 8
        nb_taken, *leases = struct.unpack(f"<I{nb_leases}Q", payload)
        return cls(nb_taken, tuple(leases))


@message
@dataclass(frozen=True, slots=True)
class Leave:
    """No more batches, please. The socket closes when the last lease is over."""


@message
@dataclass(frozen=True, slots=True)
class Dropped:
    """The producer goes on without this consumer."""

    reason: str


@message
@dataclass(frozen=True, slots=True)
class Ended:
    """The producer is done; no epoch follows."""


Message = (
    Join
    | Admit
    | EpochBegins
    | EpochEnds
    | Region
    | ForgetRegion
    | Batch
    | Took
    | Leave
    | Dropped
    | Ended
)


def _is_count(*values: object) -> bool:
    """Whether these are whole numbers that fit in a message."""
    return all(type(value) is int and 0 <= value < 1 << 63 for value in values)
