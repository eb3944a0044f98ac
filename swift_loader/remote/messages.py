"""What an endpoint and a training process say to each other; `swift_loader.remote.frames` packs it.

Down (training process to endpoint): `Hello`, `Chunk`, `SetPlan`, `Order`, `Forget`, `AskStacks`,
`Bye`; `Join`; and `AskStatus` from anybody who may connect.
Up: `Welcome`, `Up`, `Refused`, `MadeFrame`, `NotMade`, `Crashed`, `Stacks`, `Ping`, `Closing`,
`Status`.

Every `Order` is answered once, by `MadeFrame`, `NotMade` or `Crashed`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swift_loader.errors import LoaderError
from swift_loader.order.part import Number
from swift_loader.pipeline.link import Crashed, NotMade, Refused, Up
from swift_loader.transport.messages import BadSample, Forget, SetPlan, StageTimes

__all__ = [
    "CHUNK_BYTES",
    "LONGEST_FRAME_BYTES",
    "PROTOCOL",
    "AskStacks",
    "AskStatus",
    "Buffer",
    "Bye",
    "Chunk",
    "Closing",
    "FrameError",
    "Hello",
    "Join",
    "MadeFrame",
    "Message",
    "Order",
    "Ping",
    "Stacks",
    "Status",
    "Welcome",
]

PROTOCOL = 2
CHUNK_BYTES = 1 << 20
LONGEST_FRAME_BYTES = 1 << 24  # of what a training process sends; ZeroMQ cuts off a longer one

Buffer = bytes | memoryview


class FrameError(LoaderError, ValueError):
    """A peer sent something that is no message of this protocol. Says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A training process asks for a session.

    `versions` by name; the payload (the dataset and all that belongs to it) is known by its size
    and SHA-256; then the place of this consumer among all, and the numbers of the workers behind
    this connection: `first_worker`, then every `worker_step`-th.
    """

    protocol: int
    versions: dict[str, str]
    payload_bytes: int
    payload_sha256: str
    consumer_index: int
    nb_consumer: int
    worker_per_consumer: int
    seed: int
    first_worker: int
    worker_step: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next bytes of the payload, from `offset` on."""

    offset: int
    data: Buffer


@dataclass(frozen=True, slots=True)
class Order:
    """Make batch `number`. `indices` (int64, little endian) where the order is the user's own."""

    ticket: int
    number: Number
    indices: bytes = b""


@dataclass(frozen=True, slots=True)
class AskStacks:
    """Where are your workers?"""


@dataclass(frozen=True, slots=True)
class Bye:
    """The session is over."""


@dataclass(frozen=True, slots=True)
class Join:
    """This connection is one more for the session's answers. `token` as its `Welcome` said."""

    session: int
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AskStatus:
    """What is the endpoint doing? Needs no session."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The session begins. `need_payload`: send it, nobody else has."""

    session: int
    token: str = field(repr=False)
    capacity: int
    need_payload: bool


@dataclass(frozen=True, slots=True)
class MadeFrame:
    """A batch. `data` is what the slot held."""

    ticket: int
    nb_samples: int
    times: StageTimes
    skeleton: bytes
    bad: tuple[BadSample, ...]
    data: Buffer


@dataclass(frozen=True, slots=True)
class Stacks:
    """Where the workers are, for a reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you still there? Needs no answer: that it can't be delivered is the answer."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The endpoint ends, or ends this session; `why` for a reader."""

    why: str


@dataclass(frozen=True, slots=True)
class Status:
    """What the endpoint is doing, JSON-able."""

    facts: dict[str, Any]


Message = (
    Hello
    | Chunk
    | SetPlan
    | Order
    | Forget
    | AskStacks
    | Bye
    | Join
    | AskStatus
    | Welcome
    | Up
    | Refused
    | MadeFrame
    | NotMade
    | Crashed
    | Stacks
    | Ping
    | Closing
    | Status
)
