"""The messages of `swift_loader.remote.messages` as ZeroMQ frames, and back.

A ZeroMQ message is a run of frames, and may hold several of ours. A frame is ``<u8 kind> <body>``;
`Chunk`, and a `MadeFrame` whose batch is not short, are followed by one raw frame with their bytes.
As ZeroMQ's cost goes by frames, short ones that follow each other travel in one, a bundle:
``<u8 64> (<u32 length> <frame>)*``. Bodies are `struct` where it matters and JSON elsewhere:
nothing here is unpickled, and whatever is malformed, too long or out of range is a `FrameError`.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

from swift_loader.order.part import Number
from swift_loader.pipeline.link import Crashed, NotMade, Refused, Up
from swift_loader.plan import Plan
from swift_loader.remote.messages import (
    CHUNK_BYTES,
    AskStacks,
    AskStatus,
    Buffer,
    Bye,
    Chunk,
    Closing,
    FrameError,
    Hello,
    Join,
    MadeFrame,
    Message,
    Order,
    Ping,
    Stacks,
    Status,
    Welcome,
)
from swift_loader.transport.messages import (
    BadSample,
    ErrorReport,
    Forget,
    SetPlan,
    StageTimes,
)

__all__ = ["SHORT_BYTES", "bundled", "pack", "unpack"]

SHORT_BYTES = 1 << 14  # copied twice, which costs less than a frame
_BUNDLE = b"\x40"
_RAW = 2**32 - 1  # for the length of a batch: it follows as a frame of its own
_LONGEST_BUNDLE_BYTES = 1 << 16
_LONGEST_JSON_BYTES = 1 << 22
_MOST_FRAMES = 4096

T = TypeVar("T")

_CHUNK = struct.Struct("<BQ")
_ORDER = struct.Struct("<BQIqq")
_MADE = struct.Struct("<BQIfffII")
_TICKET = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")


def pack(message: Message) -> list[Buffer]:
    """The frames of `message`."""
    head = bytes([_KIND_OF[type(message)]])
    match message:
        case Order(ticket=ticket, number=n, indices=indices):
            return [_ORDER.pack(head[0], ticket, n.plan_id, n.epoch, n.k) + indices]
        case MadeFrame():
            return _pack_made(head[0], message)
        case Chunk(offset=offset, data=data):
            return [_CHUNK.pack(head[0], offset), data]
        case Forget(tickets=tickets):
            return [head + b"".join(map(_TICKET.pack, sorted(tickets)))]
        case _:
            return [head + json.dumps(_plain(message), separators=(",", ":")).encode()]


def _pack_made(kind: int, made: MadeFrame) -> list[Buffer]:
    bad = json.dumps([asdict(one) for one in made.bad]).encode() if made.bad else b""
    nb_data = len(made.data) if len(made.data) <= SHORT_BYTES else _RAW
    head = _MADE.pack(kind, made.ticket, made.nb_samples, *made.times, len(bad), nb_data)
    if nb_data == _RAW:
        return [b"".join((head, bad, made.skeleton)), made.data]
    return [b"".join((head, bad, made.skeleton, made.data))]


def bundled(frames: Sequence[Buffer]) -> list[Buffer]:
    """The same for `unpack`, in fewer frames: neighbours that are short go in one.

    Not for chunks: the raw frame that follows one may be short.
    """
    fewer: list[Buffer] = []
    run: list[Buffer] = []
    run_bytes = 1
    for frame in frames:
        more_bytes = _LENGTH.size + len(frame)
        if len(frame) > SHORT_BYTES or run_bytes + more_bytes > _LONGEST_BUNDLE_BYTES:
            fewer += _bundle(run)
            run, run_bytes = [], 1
        if len(frame) > SHORT_BYTES:
            fewer.append(frame)
        else:
            run.append(frame)
            run_bytes += more_bytes
    return fewer + _bundle(run)


def _bundle(run: list[Buffer]) -> list[Buffer]:
    if len(run) < 2:
        return run
    parts: list[Buffer] = [_BUNDLE]
    for frame in run:
        parts += (_LENGTH.pack(len(frame)), frame)
    return [b"".join(parts)]


def unpack(frames: Sequence[Buffer]) -> Iterator[Message]:
    """The messages in the frames of one ZeroMQ message. Raises `FrameError`."""
    if len(frames) > _MOST_FRAMES:
        raise FrameError(f"{len(frames)} frames in one message; {_MOST_FRAMES} are the most")
    rest = iter(frames)
    for frame in rest:
        if frame[:1] == _BUNDLE:
            for loose in _loose(frame):
                yield _message(loose, rest)
        else:
            yield _message(frame, rest)


def _message(frame: Buffer, rest: Iterator[Buffer]) -> Message:
    """What `frame` says, with the raw frame that it may take from the `rest`."""
    if not len(frame):
        raise FrameError("an empty frame")
    kind = frame[0]
    if kind == _KIND_OF[MadeFrame]:
        return _made(frame, rest)
    if kind == _KIND_OF[Order]:
        return _order(frame)
    if kind == _KIND_OF[Chunk]:
        return _chunk(frame, next(rest, None))
    if kind == _KIND_OF[Forget]:
        return _forget(frame)
    if kind in _BODIES:
        return _BODIES[kind](_body(frame))
    raise FrameError(f"a frame of kind {kind}, which there is not")


def _loose(bundle: Buffer) -> Iterator[Buffer]:
    if len(bundle) > _LONGEST_BUNDLE_BYTES:
        raise FrameError(f"a bundle of {len(bundle)} bytes")
    at = 1
    while at < len(bundle):
        start = at + _LENGTH.size
        if start > len(bundle):
            raise FrameError("a bundle that ends too early")
        at = start + _LENGTH.unpack_from(bundle, at)[0]
        if at > len(bundle):
            raise FrameError("a bundle that ends too early")
        yield bundle[start:at]


def _order(frame: Buffer) -> Order:
    if len(frame) < _ORDER.size or (len(frame) - _ORDER.size) % 8:
        raise FrameError(f"an order of {len(frame)} bytes")
    _, ticket, plan_id, epoch, k = _ORDER.unpack_from(frame)
    return Order(ticket, Number(plan_id, epoch, k), bytes(frame[_ORDER.size :]))


def _made(frame: Buffer, rest: Iterator[Buffer]) -> MadeFrame:
    if len(frame) < _MADE.size:
        raise FrameError(f"an answer of {len(frame)} bytes")
    _, ticket, nb_samples, fetch, collate, encode, nb_bad, nb_data = _MADE.unpack_from(frame)
    start = _MADE.size + nb_bad
    stop = len(frame) if nb_data == _RAW else len(frame) - nb_data
    if start > stop:
        raise FrameError("an answer that ends too early")
    data = next(rest, None) if nb_data == _RAW else frame[stop:]
    if data is None:
        raise FrameError("an answer without its batch")
    bad: tuple[BadSample, ...] = ()
    if nb_bad:
        listed = _json(frame[_MADE.size : start])
        if not isinstance(listed, list):
            raise FrameError("bad samples that are no list")
        bad = tuple(_build(BadSample, one) for one in listed)
    times = StageTimes(fetch, collate, encode)
    return MadeFrame(ticket, nb_samples, times, bytes(frame[start:stop]), bad, data)


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
    (9, Join, _plainly(Join)),
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
