"""What goes between the training process, its pipe workers and a dispatching process.

| message | from | to | says |
|---|---|---|---|
| `Begin` | training process | every process | an epoch begins, with these seeds |
| `Connect` | training process | worker, dispatching process | this socket leads to the other one |
| `Give` | feed | server | make up to so many items of this epoch, into this slot |
| `Ready`, `StartFailed` | process | training process | its graph is built, or could not be |
| `Made`, `Failed`, `Skipped` | server | feed | the answer to a `Give`, exactly one |

The last two rows are those of the batch workers (`swift_loader.transport.messages`), and so are
slots and frames. All ends are processes of one user on a socket pair; pickle is fine here.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swift_loader.dataloader2.random import SeedGenerator
from swift_loader.transport.channel import Channel
from swift_loader.transport.messages import KIND_OTHER, Message, pack, unpack

__all__ = ["KIND_GIVE", "Begin", "Connect", "Give", "hear", "post_give", "tell"]

KIND_GIVE = 17  # beside the kinds of `swift_loader.transport.messages`
_GIVE = struct.Struct("<QqIi")


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


@dataclass(frozen=True, slots=True)
class Connect:
    """Beside it travels a socket: of the dispatching process, or to the worker with this index."""

    worker: int


@dataclass(frozen=True, slots=True)
class Give:
    """Make up to `nb_item` items, at least one unless the epoch ends, into slot `slot`."""

    ticket: int
    epoch: int
    nb_item: int
    slot: int


def post_give(channel: Channel, give: Give) -> None:
    """Queue a `Give`; the channel's `flush` sends it."""
    channel.post(KIND_GIVE, _GIVE.pack(give.ticket, give.epoch, give.nb_item, give.slot))


def tell(channel: Channel, message: Begin | Connect | Message, fds: Sequence[int] = ()) -> None:
    """Send one message now. Raises `ChannelClosedError` when the other end is gone."""
    if isinstance(message, (Begin, Connect)):
        channel.send(KIND_OTHER, pickle.dumps(message, 5), fds)
    else:
        channel.send(*pack(message), fds)


def hear(kind: int, payload: bytes) -> Any:
    """The message of a frame."""
    if kind == KIND_GIVE:
        return Give(*_GIVE.unpack(payload))
    return unpack(kind, payload)
