"""The messages of `swift_loader.remote.messages` as ZeroMQ frames, and back.

A ZeroMQ message is a run of frames, and may hold several of ours. A frame is ``<u8 kind> <body>``;
`Chunk`, and a `MadeFrame` whose batch is not short, are followed by one raw frame with their bytes.
As ZeroMQ's cost goes by frames, short ones that follow each other travel in one, a bundle:
``<u8 64> (<u32 length> <frame>)*``. Bodies are `struct` where it matters and MessagePack, by
msgspec, elsewhere: nothing here is unpickled, and whatever is malformed, too long or out of range
is a `FrameError`.

On a line without a key nothing else notices a flipped bit: there the first frame of each ZeroMQ
message begins with the CRC-32 of all of it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

from swift_loader.order.part import Number
from swift_loader.pipeline.link import Crashed, NotMade, Refused, Up
from swift_loader.remote.messages import (
    CHUNK_BYTES,
    AskHere,
    AskStacks,
    AskStatus,
    Attach,
    Buffer,
    Bye,
    Chunk,
    Closing,
    DamagedError,
    FrameError,
    Hello,
    Here,
    MadeFrame,
    MakeFrame,
    Message,
    Ping,
    Stacks,
    Status,
    Welcome,
)
from swift_loader.transport.messages import BadSample, Forget, SetPlan, StageTimes

__all__ = ["SHORT_BYTES", "bundled", "checked", "pack_frames", "sealed", "unpack_frames"]

SHORT_BYTES = 1 << 14  # copied twice, which costs less than a frame
_BUNDLE = b"\x40"
_RAW = 2**32 - 1  # for the length of a batch: it follows as a frame of its own
_LONGEST_BUNDLE_BYTES = 1 << 16
_LONGEST_BODY_BYTES = 1 << 22
_MOST_FRAMES = 4096

_CHUNK = struct.Struct("<BQ")
_MAKE = struct.Struct("<BQIqq")
_MADE = struct.Struct("<BQIffffqII")
_LENGTH = struct.Struct("<I")

_KIND_OF: dict[type, int] = {
    Hello: 1,
    Chunk: 2,
    SetPlan: 3,
    MakeFrame: 4,
    Forget: 5,
    AskStacks: 6,
    Bye: 7,
    AskStatus: 8,
    Attach: 9,
    AskHere: 10,
    Welcome: 33,
    Up: 34,
    Refused: 35,
    MadeFrame: 36,
    NotMade: 37,
    Crashed: 38,
    Stacks: 39,
    Ping: 40,
    Closing: 41,
    Status: 42,
    Here: 43,
}


# What a field of this name may be, in the messages that the pipeline has too.
_BOUNDS = {
    "plan_id": Annotated[int, msgspec.Meta(ge=0, lt=2**32)],
    "capacity": Annotated[int, msgspec.Meta(ge=1, lt=2**32)],
    "round_trip_s": Annotated[float, msgspec.Meta(ge=0.0)],
}


def _strict(kind: Any) -> Any:
    """`kind`, with each dataclass in it as a struct that allows no other fields."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        its = [(i.name, _BOUNDS.get(i.name) or _strict(hints[i.name])) for i in fields(kind)]
        return msgspec.defstruct(kind.__name__, its, frozen=True, forbid_unknown_fields=True)
    if inner := [one for one in get_args(kind) if is_dataclass(one)]:
        return _strict(inner[0]) | None  # the only such type that there is
    return kind


_DECODERS = {
    number: (kind, msgspec.msgpack.Decoder(_strict(kind)))
    for kind, number in _KIND_OF.items()
    if kind not in (Chunk, MakeFrame, MadeFrame)
}
_BAD_SAMPLES = msgspec.msgpack.Decoder(tuple[_strict(BadSample), ...])  # type: ignore[misc]


def pack_frames(message: Message) -> list[Buffer]:
    """The frames of `message`."""
    kind = _KIND_OF[type(message)]
    match message:
        case MakeFrame(ticket=ticket, number=n, indices=indices):
            return [_MAKE.pack(kind, ticket, n.plan_id, n.epoch, n.k) + indices]
        case MadeFrame():
            return _pack_made(kind, message)
        case Chunk(offset=offset, data=data):
            return [_CHUNK.pack(kind, offset), data]
        case _:
            return [bytes([kind]) + _encoded(message)]


def _pack_made(kind: int, made: MadeFrame) -> list[Buffer]:
    bad = _encoded(made.bad) if made.bad else b""
    nb_data = len(made.data) if len(made.data) <= SHORT_BYTES else _RAW
    head = _MADE.pack(kind, made.ticket, made.nb_samples, *made.times, len(bad), nb_data)
    if nb_data == _RAW:
        return [b"".join((head, bad, made.skeleton)), made.data]
    return [b"".join((head, bad, made.skeleton, made.data))]


def _encoded(message: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(message)
    except UnicodeEncodeError:  # a text of the user's, such as the name of a file
        return msgspec.msgpack.encode(_legible(msgspec.to_builtins(message, builtin_types=[bytes])))


def _legible(plain: Any) -> Any:
    if isinstance(plain, str):
        return plain.encode("utf-8", "backslashreplace").decode()
    if isinstance(plain, dict):
        return {name: _legible(value) for name, value in plain.items()}
    return [_legible(one) for one in plain] if isinstance(plain, list) else plain


def bundled(frames: Sequence[Buffer]) -> list[Buffer]:
    """The same for `unpack_frames`, in fewer frames: neighbours that are short go in one.

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


def sealed(frames: Sequence[Buffer]) -> list[Buffer]:
    """The same with a checksum, for a line without a key."""
    crc = 0
    for frame in frames:
        crc = zlib.crc32(frame, crc)
    return [b"".join((_LENGTH.pack(crc), frames[0])), *frames[1:]]


def checked(frames: Sequence[Buffer]) -> list[Buffer]:
    """What was `sealed`. Raises `DamagedError` where something of it has changed."""
    if not frames or len(frames[0]) < _LENGTH.size:
        raise DamagedError("a message came damaged: it has no checksum")
    whole = [frames[0][_LENGTH.size :], *frames[1:]]
    crc = 0
    for frame in whole:
        crc = zlib.crc32(frame, crc)
    if crc != _LENGTH.unpack_from(frames[0])[0]:
        raise DamagedError("a message came damaged, or one side uses a key and the other does not")
    return whole


def unpack_frames(frames: Sequence[Buffer]) -> Iterator[Message]:
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
    if kind == _KIND_OF[MakeFrame]:
        return _make(frame)
    if kind == _KIND_OF[Chunk]:
        return _chunk(frame, next(rest, None))
    if kind in _DECODERS:
        return _decoded(kind, frame)
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


def _make(frame: Buffer) -> MakeFrame:
    if len(frame) < _MAKE.size:
        raise FrameError(f"an order of {len(frame)} bytes")
    _, ticket, plan_id, epoch, k = _MAKE.unpack_from(frame)
    return MakeFrame(ticket, Number(plan_id, epoch, k), bytes(frame[_MAKE.size :]))


def _made(frame: Buffer, rest: Iterator[Buffer]) -> MadeFrame:
    if len(frame) < _MADE.size:
        raise FrameError(f"an answer of {len(frame)} bytes")
    _, ticket, nb_samples, *times, nb_bad, nb_data = _MADE.unpack_from(frame)
    start = _MADE.size + nb_bad
    stop = len(frame) if nb_data == _RAW else len(frame) - nb_data
    if start > stop:
        raise FrameError("an answer that ends too early")
    data = next(rest, None) if nb_data == _RAW else frame[stop:]
    if data is None:
        raise FrameError("an answer without its batch")
    bad: tuple[BadSample, ...] = ()
    if nb_bad:
        bad = _valid(tuple[BadSample, ...], _BAD_SAMPLES, frame[_MADE.size : start])
    return MadeFrame(ticket, nb_samples, StageTimes(*times), bytes(frame[start:stop]), bad, data)


def _chunk(frame: Buffer, data: Buffer | None) -> Chunk:
    if len(frame) != _CHUNK.size or data is None or not 0 < len(data) <= CHUNK_BYTES:
        raise FrameError("a chunk of the payload that is none")
    return Chunk(_CHUNK.unpack(frame)[1], data)


def _decoded(number: int, frame: Buffer) -> Message:
    if len(frame) > _LONGEST_BODY_BYTES:
        raise FrameError(f"a message of {len(frame)} bytes; {_LONGEST_BODY_BYTES} are the most")
    kind, decoder = _DECODERS[number]
    message: Message = _valid(kind, decoder, frame[1:])
    return message


def _valid(kind: Any, decoder: msgspec.msgpack.Decoder[Any], body: Buffer) -> Any:
    try:
        strict = decoder.decode(body)
        return msgspec.convert(strict, kind, from_attributes=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        name = getattr(kind, "__name__", "message")
        raise FrameError(f"a {name} that is none: {error}") from None
