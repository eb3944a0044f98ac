"""What goes between the training process, its pipe workers and a dispatching process.

The rest of what they say is the batch workers' (`swift_loader.transport.messages`): `Ready` and
`StartFailed` once a process, and `Made`, `Failed` or `Skipped` as the answer to a `Give`, exactly
one. So are slots and frames; who sends what stands in `swift_loader.transport.table`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from swift_loader.dataloader2.random import SeedGenerator
from swift_loader.transport.table import message

__all__ = ["Begin", "Connect", "Give"]

_GIVE = struct.Struct("<QqIi")


@message
@dataclass(frozen=True, slots=True)
class Begin:
    """Epoch `epoch` begins, with seeds from `seed_generator`.

    `iter_reset_fn` is a shipped function of the graph, or empty. `nb_skip` items are made and
    dropped first: a worker that takes a dead one's place goes on there.
    """

    epoch: int
    seed_generator: SeedGenerator
    iter_reset_fn: bytes
    nb_skip: int = 0


@message
@dataclass(frozen=True, slots=True)
class Connect:
    """Beside it travels a socket: of the dispatching process, or to the worker with this index."""

    worker: int


@message
class Give(NamedTuple):
    """Make up to `nb_item` items, at least one unless the epoch ends, into slot `slot`."""

    ticket: int
    epoch: int
    nb_item: int
    slot: int

    def packed(self) -> bytes:
        """For `swift_loader.transport.table`."""
        return _GIVE.pack(*self)

    @classmethod
    def unpacked(cls, payload: bytes) -> Give:
        """What was packed."""
        return cls(*_GIVE.unpack(payload))
