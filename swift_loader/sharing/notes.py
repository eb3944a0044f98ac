"""What ranks of a group are told beside a batch, and at an epoch's end. Role: part of the leader.

With a note a rank knows of a batch all that the leader's pipeline knows of it: which one it is, who
made it, where a stream stands after it. So it needs no plan of its own, and its state is the
leader's. Notes travel in `Batch` and `EpochEnds`; those of a producer have none.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from swift_loader.order.part import Number, ShardsOver
from swift_loader.transport.messages import ErrorReport

__all__ = ["EndNote", "Note", "packed", "unpacked"]


class Note(NamedTuple):
    """About a batch, or about what could not be made in its place (`report`, from `where`).

    `state` is that of the shard of `worker`, and `over` says which shards have ended by then.
    `checksum`: see `Order.checksum`.
    """

    number: Number
    worker: int
    nb_samples: int = 0
    state: bytes = b""
    over: ShardsOver | None = None
    checksum: int | None = None
    report: ErrorReport | None = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class EndNote:
    """The epoch has no more batches, or the leader has `left` it before its end.

    `ends`: how a stream stands, by worker. `nb_asked`: see `CountedOrder`.
    """

    ends: Mapping[int, bytes]
    over: ShardsOver | None = None
    left: bool = False
    nb_asked: int | None = None


def packed(note: Note | EndNote) -> bytes:
    """For a message."""
    return pickle.dumps(note, protocol=5)


def unpacked(said: bytes) -> Note | EndNote | None:
    """What was packed. It came over a socket whose peer the kernel has vouched for."""
    if not said:
        return None
    note: Note | EndNote = pickle.loads(said)
    return note
