"""What a producer and a consumer say to each other, over one Unix socket.

Up (consumer to producer): `Hello` once, then `Took`, and `Leave` at the end.
Down (producer to consumer): `Welcome`; for every epoch `EpochBegins`, `Batch` ..., `EpochEnds`;
`Region` (with its descriptor) before the first batch that lies in it, `Forget` after the last; at
the end `Dropped` or `Ended`.

`Batch` and `Took` are packed by `struct`, the rest is rare and pickled: both ends are processes of
one user, which the kernel vouches for before anything is read.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = [
    "Batch",
    "Dropped",
    "Ended",
    "EpochBegins",
    "EpochEnds",
    "Forget",
    "Hello",
    "Late",
    "Leave",
    "Message",
    "Position",
    "Region",
    "Took",
    "Welcome",
    "pack",
    "pack_batch",
    "unpack",
]

Late = Literal["epoch", "now"]


class Position(NamedTuple):
    """A batch number: batch `k` of epoch `epoch`."""

    epoch: int
    k: int


@dataclass(frozen=True, slots=True)
class EpochBegins:
    """Epoch `epoch` follows, from batch `first` on.

    `nb_batches` of the whole epoch, and `nb_samples` from `first` on; None: not known.
    """

    epoch: int
    first: int
    nb_batches: int | None
    nb_samples: int | None


@dataclass(frozen=True, slots=True)
class EpochEnds:
    """The epoch is over after `nb_batches`; `following` is what comes next, for ``len``."""

    epoch: int
    nb_batches: int
    following: EpochBegins


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a consumer. `position`: where it was, if it was here before."""

    version: str
    name: str
    late: Late
    producer: str = ""  # that `position` is about
    position: Position | None = None
    strict: bool = False  # nothing after `position` may be missing, whichever producer it is


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer: `begins` is the epoch that the consumer will see first.

    `Took` is expected every `report_every` batches. `producer` is its identity.
    """

    begins: EpochBegins
    report_every: int
    producer: str


@dataclass(frozen=True, slots=True)
class Region:
    """A descriptor comes along: region `region` of `nbytes`, on this device ("": shared memory).

    `export` is how a device's memory is opened.
    """

    region: int
    nbytes: int
    device: str = ""
    export: bytes = b""


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing will lie in this region any more."""

    region: int


class Batch(NamedTuple):
    """A batch: `used_bytes` of region `region`, held under `lease` until `Took` names it.

    `skeleton` is for the codec; where `skeleton_bytes` > 0 it lies at the end of the used bytes.
    """

    lease: int
    epoch: int
    k: int
    region: int
    used_bytes: int
    skeleton_bytes: int
    skeleton: bytes


class Took(NamedTuple):
    """`nb_taken` more batches have left the queue; these leases are over."""

    nb_taken: int
    leases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """No more batches, please. The socket closes when the last lease is over."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The producer goes on without this consumer."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The producer is done; no epoch follows."""


Message = (
    Hello
    | Welcome
    | EpochBegins
    | EpochEnds
    | Region
    | Forget
    | Batch
    | Took
    | Leave
    | Dropped
    | Ended
)

KIND_BATCH, KIND_TOOK, KIND_OTHER = 1, 2, 3
_BATCH = struct.Struct("<QqqqqI")
_COUNT = struct.Struct("<I")


def pack(message: Message) -> tuple[int, bytes]:
    """``(kind, payload)`` of the frame that carries `message`."""
    if type(message) is Took:
        leases = message.leases
        return KIND_TOOK, struct.pack(f"<I{len(leases)}Q", message.nb_taken, *leases)
    return KIND_OTHER, pickle.dumps(message, 5)


def pack_batch(
    lease: int,
    at: Position,
    region: int,
    used_bytes: int,
    skeleton_bytes: int,
    skeleton: bytes,
) -> tuple[int, bytes]:
    """The frame of a `Batch`."""
    head = _BATCH.pack(lease, at.epoch, at.k, region, used_bytes, skeleton_bytes)
    return KIND_BATCH, head + skeleton


def unpack(kind: int, payload: bytes) -> Message:
    """The message of a frame."""
    if kind == KIND_BATCH:
        lease, epoch, k, region, used_bytes, skeleton_bytes = _BATCH.unpack_from(payload)
        skeleton = payload[_BATCH.size :]
        return Batch(lease, epoch, k, region, used_bytes, skeleton_bytes, skeleton)
    if kind == KIND_TOOK:
        (nb_taken,) = _COUNT.unpack_from(payload)
        nb_leases = (len(payload) - _COUNT.size) // 8
        return Took(nb_taken, struct.unpack_from(f"<{nb_leases}Q", payload, _COUNT.size))
    message: Message = pickle.loads(payload)
    return message
