"""What an endpoint and a training process say to each other, as ZeroMQ frames.

A ZeroMQ message is a run of frames, and may hold several of ours. A frame is ``<u8 kind> <body>``;
`Chunk` and `MadeFrame` are followed by one raw frame with their bytes. Bodies are `struct` where it
matters and JSON elsewhere: nothing here is unpickled, and whatever is malformed, too long or out
of range is a `FrameError`.

Down (training process to endpoint): `Hello`, `Chunk`, `SetPlan`, `Order`, `Forget`, `AskStacks`,
`Bye`; and `AskStatus` from anybody who may connect.
Up: `Welcome`, `Up`, `Refused`, `MadeFrame`, `NotMade`, `Crashed`, `Stacks`, `Ping`, `Closing`,
`Status`.

Every `Order` is answered once, by `MadeFrame`, `NotMade` or `Crashed`.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from swift_loader.errors import LoaderError
from swift_loader.pipeline.link import Crashed, NotMade, Refused, Up
from swift_loader.plan import Plan
from swift_loader.transport.messages import (
    BadSample,
    ErrorReport,
    Forget,
    Number,
    SetPlan,
    StageTimes,
)

__all__ = [
    "CHUNK_BYTES",
    "LONGEST_FRAME_BYTES",
    "PROTOCOL",
    "AskStacks",
    "AskStatus",
    "Bye",
    "Chunk",
    "Closing",
    "FrameError",
    "Hello",
    "MadeFrame",
    "Message",
    "Order",
    "Ping",
    "Stacks",
    "Status",
    "Welcome",
    "pack",
    "unpack",
]

PROTOCOL = 1
CHUNK_BYTES = 1 << 20
LONGEST_FRAME_BYTES = 1 << 24  # of what a training process sends; ZeroMQ cuts off a longer one
_LONGEST_JSON_BYTES = 1 << 22
_MOST_FRAMES = 4096

Buffer = bytes | memoryview
T = TypeVar("T")


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
class AskStatus:
    """What is the endpoint doing? Needs no session."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The session begins. `need_payload`: send it, nobody else has."""

    session: int
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

_CHUNK = struct.Struct("<BQ")
_ORDER = struct.Struct("<BQIqq")
_MADE = struct.Struct("<BQIfffI")
_TICKET = struct.Struct("<Q")


def pack(message: Message) -> list[Buffer]:
    """The frames of `message`."""
    kind = type(message)
    if kind is Order:
        order: Order = message  # type: ignore[assignment]
        n = order.number
        head = _ORDER.pack(_KIND_OF[Order], order.ticket, n.plan_id, n.epoch, n.k)
        return [head + order.indices]
    if kind is MadeFrame:
        made: MadeFrame = message  # type: ignore[assignment]
        bad = json.dumps([asdict(one) for one in made.bad]).encode() if made.bad else b""
        head = _MADE.pack(_KIND_OF[MadeFrame], made.ticket, made.nb_samples, *made.times, len(bad))
        return [head + bad + made.skeleton, made.data]
    if kind is Chunk:
        chunk: Chunk = message  # type: ignore[assignment]
        return [_CHUNK.pack(_KIND_OF[Chunk], chunk.offset), chunk.data]
    head = bytes([_KIND_OF[kind]])
    if kind is Forget:
        tickets: Forget = message  # type: ignore[assignment]
        return [head + b"".join(map(_TICKET.pack, sorted(tickets.tickets)))]
    return [head + json.dumps(_plain(message), separators=(",", ":")).encode()]


def unpack(frames: Sequence[Buffer]) -> Iterator[Message]:
    """The messages in the frames of one ZeroMQ message. Raises `FrameError`."""
    if len(frames) > _MOST_FRAMES:
        raise FrameError(f"{len(frames)} frames in one message; {_MOST_FRAMES} are the most")
    rest = iter(frames)
    for frame in rest:
        if not len(frame):
            raise FrameError("an empty frame")
        kind = frame[0]
        if kind == _KIND_OF[MadeFrame]:
            yield _made(frame, next(rest, None))
        elif kind == _KIND_OF[Order]:
            yield _order(frame)
        elif kind == _KIND_OF[Chunk]:
            yield _chunk(frame, next(rest, None))
        elif kind == _KIND_OF[Forget]:
            yield _forget(frame)
        elif kind in _BODIES:
            yield _BODIES[kind](_body(frame))
        else:
            raise FrameError(f"a frame of kind {kind}, which there is not")


def _order(frame: Buffer) -> Order:
    if len(frame) < _ORDER.size or (len(frame) - _ORDER.size) % 8:
        raise FrameError(f"an order of {len(frame)} bytes")
    _, ticket, plan_id, epoch, k = _ORDER.unpack_from(frame)
    return Order(ticket, Number(plan_id, epoch, k), bytes(frame[_ORDER.size :]))


def _made(frame: Buffer, data: Buffer | None) -> MadeFrame:
    if len(frame) < _MADE.size or data is None:
        raise FrameError(f"an answer of {len(frame)} bytes, or without its batch")
    _, ticket, nb_samples, fetch, collate, encode, nb_bad = _MADE.unpack_from(frame)
    start = _MADE.size + nb_bad
    if start > len(frame):
        raise FrameError("an answer that ends too early")
    bad: tuple[BadSample, ...] = ()
    if nb_bad:
        listed = _json(frame[_MADE.size : start])
        if not isinstance(listed, list):
            raise FrameError("bad samples that are no list")
        bad = tuple(_build(BadSample, one) for one in listed)
    times = StageTimes(fetch, collate, encode)
    return MadeFrame(ticket, nb_samples, times, bytes(frame[start:]), bad, data)


def _chunk(frame: Buffer, data: Buffer | None) -> Chunk:
    if len(frame) != _CHUNK.size or data is None or not 0 < len(data) <= CHUNK_BYTES:
        raise FrameError("a chunk of the payload that is none")
    return Chunk(_CHUNK.unpack(frame)[1], data)


def _forget(frame: Buffer) -> Forget:
    if len(frame) % _TICKET.size != 1:
        raise FrameError(f"a list of tickets of {len(frame)} bytes")
    return Forget(frozenset(ticket for (ticket,) in _TICKET.iter_unpack(frame[1:])))


def _body(frame: Buffer) -> dict[str, Any]:
    if len(frame) > _LONGEST_JSON_BYTES:
        raise FrameError(f"a message of {len(frame)} bytes; {_LONGEST_JSON_BYTES} are the most")
    body = _json(frame[1:])
    if not isinstance(body, dict):
        raise FrameError(f"a message that is a {type(body).__name__}")
    return body


def _json(data: Buffer) -> Any:
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise FrameError(f"a message that is no JSON: {error}") from None


def _plain(message: Message) -> dict[str, Any]:
    match message:
        case SetPlan(plan_id=plan_id, plan=plan):
            return {"plan_id": plan_id, "plan": asdict(plan)}
        case Refused(fault=fault):
            return {"fault": _plain_fault(fault)}
        case NotMade(ticket=ticket, fault=fault):
            return {"ticket": ticket, "fault": _plain_fault(fault) if fault else None}
        case _:
            return asdict(message)


def _plain_fault(fault: ErrorReport) -> dict[str, Any]:
    plain = asdict(fault)
    if fault.exception is not None:
        plain["exception"] = base64.b64encode(fault.exception).decode()
    return plain


# What a field of a message may be, by the text of its annotation.
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": lambda v: type(v) is int and -(2**63) <= v < 2**64,
    "int | None": lambda v: v is None or (type(v) is int and -(2**63) <= v < 2**64),
    "float": lambda v: type(v) in (int, float),
    "str": lambda v: type(v) is str,
    "bool": lambda v: type(v) is bool,
    "dict[str, str]": lambda v: isinstance(v, dict) and all(type(x) is str for x in v.values()),
    "dict[str, Any]": lambda v: isinstance(v, dict),
    "bytes | None": lambda v: v is None or type(v) is bytes,
    "tuple[int, ...]": lambda v: isinstance(v, tuple) and all(type(x) is int for x in v),
}


def _build(kind: type[T], body: Any) -> T:
    """The dataclass `kind` from a dict, each field checked by its annotation."""
    wanted = fields(kind)  # type: ignore[arg-type]
    if not isinstance(body, dict) or body.keys() != {field.name for field in wanted}:
        raise FrameError(f"a {kind.__name__} with other fields than it has")
    for field in wanted:
        if not _CHECKS[str(field.type)](body[field.name]):
            raise FrameError(f"{kind.__name__}.{field.name} is {str(body[field.name])[:80]!r}")
    return kind(**body)


def _fault(plain: Any) -> ErrorReport:
    if not isinstance(plain, dict) or not isinstance(plain.get("indices"), list):
        raise FrameError("an error report that is none")
    exception = plain.get("exception")
    if isinstance(exception, str):
        try:
            exception = base64.b64decode(exception, validate=True)
        except binascii.Error as error:
            raise FrameError(f"an error report that is none: {error}") from None
    return _build(
        ErrorReport, {**plain, "exception": exception, "indices": tuple(plain["indices"])}
    )


def _set_plan(body: dict[str, Any]) -> SetPlan:
    plan_id, plain = body.get("plan_id"), body.get("plan")
    if type(plan_id) is not int or not 0 <= plan_id < 2**32 or not isinstance(plain, dict):
        raise FrameError("a plan that is none")
    try:
        spans = plain.pop("spans", None)
        pairs = None if spans is None else tuple((start, stop) for start, stop in spans)
        return SetPlan(plan_id, Plan(**plain, spans=pairs))
    except (TypeError, ValueError) as error:  # a ConfigError is both
        raise FrameError(f"a plan that can't be: {error}") from None


def _not_made(body: dict[str, Any]) -> NotMade:
    ticket, fault = body.get("ticket"), body.get("fault")
    if type(ticket) is not int:
        raise FrameError("an answer without a ticket")
    return NotMade(ticket, None if fault is None else _fault(fault))


def _plainly(kind: type[T]) -> Callable[[dict[str, Any]], T]:
    return lambda body: _build(kind, body)


_KINDS: tuple[tuple[int, type, Callable[[dict[str, Any]], Message] | None], ...] = (
    (1, Hello, _plainly(Hello)),
    (2, Chunk, None),
    (3, SetPlan, _set_plan),
    (4, Order, None),
    (5, Forget, None),
    (6, AskStacks, _plainly(AskStacks)),
    (7, Bye, _plainly(Bye)),
    (8, AskStatus, _plainly(AskStatus)),
    (33, Welcome, _plainly(Welcome)),
    (34, Up, _plainly(Up)),
    (35, Refused, lambda body: Refused(_fault(body.get("fault")))),
    (36, MadeFrame, None),
    (37, NotMade, _not_made),
    (38, Crashed, _plainly(Crashed)),
    (39, Stacks, _plainly(Stacks)),
    (40, Ping, _plainly(Ping)),
    (41, Closing, _plainly(Closing)),
    (42, Status, _plainly(Status)),
)
_KIND_OF: dict[type, int] = {kind: number for number, kind, _ in _KINDS}
_BODIES = {number: build for number, _, build in _KINDS if build is not None}
