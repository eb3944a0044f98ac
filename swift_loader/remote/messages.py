"""What an endpoint and a training process say to each other; `swift_loader.remote.frames` packs it.

Down (training process to endpoint): `Hello`, `Chunk`, `SetPlan`, `MakeFrame`, `Forget`,
`AskStacks`, `AskHere`, `Bye`; `Attach`; and `AskStatus` from anybody who may connect.
Up: `Welcome`, `Up`, `Refused`, `MadeFrame`, `NotMade`, `Crashed`, `Stacks`, `Here`, `Ping`,
`Closing`, `Status`.

Every `MakeFrame` is answered once, by `MadeFrame`, `NotMade` or `Crashed`. Types and bounds of
fields hold for what arrives: anything else is a `FrameError`.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from swift_loader.errors import LoaderError
from swift_loader.order.part import Number
from swift_loader.pipeline.link import Crashed, NotMade, Refused, Up
from swift_loader.transport.messages import BadSample, Forget, SetPlan, StageTimes

__all__ = [
    "CHUNK_BYTES",
    "LONGEST_FRAME_BYTES",
    "PROTOCOL",
    "AskHere",
    "AskStacks",
    "AskStatus",
    "Attach",
    "Buffer",
    "Bye",
    "Chunk",
    "Closing",
    "DamagedError",
    "FrameError",
    "FullError",
    "Hello",
    "Here",
    "MadeFrame",
    "MakeFrame",
    "Message",
    "Ping",
    "Stacks",
    "Status",
    "Welcome",
]

PROTOCOL = 5
CHUNK_BYTES = 1 << 20
LONGEST_FRAME_BYTES = 1 << 24  # of what a training process sends; ZeroMQ cuts off a longer one

Buffer = bytes | memoryview
_Count = Annotated[int, Meta(ge=0)]
_Small = Annotated[int, Meta(ge=0, lt=2**32)]
_AtLeastOne = Annotated[int, Meta(ge=1, lt=2**32)]
_Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_Versions = Annotated[dict[str, str], Meta(max_length=64)]
_Token = Annotated[str, Meta(max_length=256)]


class FrameError(LoaderError, ValueError):
    """A peer sent something that is no message of this protocol. Says what is wrong with it."""


class DamagedError(FrameError):
    """A message is not what was sent. What it said, or asked for, is asked again."""


class FullError(FrameError):
    """There is no room for another session now. Says of what there is none."""


class _Said(Struct, frozen=True, forbid_unknown_fields=True):
    """A message: no more fields than it has, each of its type and within its bounds."""


class Hello(_Said, frozen=True):
    """A training process asks for a session.

    `versions` by name; the payload (the dataset and all that belongs to it) is known by its size
    and SHA-256; then the place of this consumer among all, and the numbers of the workers behind
    this connection: `first_worker`, then every `worker_step`-th.
    """

    protocol: _Count
    versions: _Versions
    payload_bytes: _Count
    payload_sha256: _Sha256
    consumer_index: _Small
    nb_consumer: _AtLeastOne
    worker_per_consumer: _Small
    seed: _Count
    first_worker: _Small
    worker_step: _AtLeastOne


class Chunk(_Said, frozen=True):
    """The next bytes of the payload, from `offset` on."""

    offset: int
    data: Buffer


class MakeFrame(_Said, frozen=True):
    """Make batch `number`. `indices` where the order is the user's own."""

    ticket: int
    number: Number
    indices: bytes = b""


class AskStacks(_Said, frozen=True):
    """Where are your workers?"""


class AskHere(_Said, frozen=True):
    """Does what this side sends still reach you?"""


class Bye(_Said, frozen=True):
    """The session is over."""


class Attach(_Said, frozen=True):
    """This connection is one more for the session's answers. `token` as its `Welcome` said."""

    session: _Count
    token: _Token

    def __repr__(self) -> str:
        return f"Attach(session={self.session})"  # the token lets its holder in


class AskStatus(_Said, frozen=True):
    """What is the endpoint doing? Needs no session."""


class Welcome(_Said, frozen=True):
    """The session begins. `need_payload`: send it, nobody else has."""

    session: _Count
    token: _Token
    capacity: _AtLeastOne
    need_payload: bool

    def __repr__(self) -> str:
        return f"Welcome(session={self.session}, capacity={self.capacity})"


class MadeFrame(_Said, frozen=True):
    """A batch. `data` is what the slot held."""

    ticket: int
    nb_samples: int
    times: StageTimes
    skeleton: bytes
    bad: tuple[BadSample, ...]
    data: Buffer


class Stacks(_Said, frozen=True):
    """Where the workers are, for a reader."""

    text: str


class Here(_Said, frozen=True):
    """It does."""


class Ping(_Said, frozen=True):
    """Are you still there? Needs no answer: that it can't be delivered is the answer."""


class Closing(_Said, frozen=True):
    """The endpoint ends, or ends this session; `why` for a reader.

    `again`: it may be otherwise in a moment, so that there is use in trying again.
    """

    why: str
    again: bool = False


class Status(_Said, frozen=True):
    """What the endpoint is doing, JSON-able."""

    facts: dict[str, Any]


Message = (
    Hello
    | Chunk
    | SetPlan
    | MakeFrame
    | Forget
    | AskStacks
    | AskHere
    | Bye
    | Attach
    | AskStatus
    | Welcome
    | Up
    | Refused
    | MadeFrame
    | NotMade
    | Crashed
    | Stacks
    | Here
    | Ping
    | Closing
    | Status
)
