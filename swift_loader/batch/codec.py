"""A batch to bytes and back, without copying it again.

The *skeleton* is a pickle (protocol 5) of everything but the numbers; the numbers of every tensor
and array lie in the arena. A tensor is pickled as

    rebuild.tensor(base, dtype name, offset, *shape)

where `base` is an out-of-band buffer: when the batch is decoded, it is the array over the slot
that every view then holds. After the pickle's end comes a trailer:

    table       offset, nbytes of every out-of-band buffer, then how many numbers that were
    flag        one byte: whether there is a table, and whether dill wrote the pickle

all int64, little-endian. The table is there when objects unknown here (data frames, say) gave
buffers out of band; (0, -1) in it is the base.

What is exact: types, dtypes, shapes, values, strides of dense layouts. What is not: memory shared
between tensors of a batch is split, gaps between strides are closed, and a plain tensor that
requires grad arrives detached (a graph can't leave its process).
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Iterable
from itertools import repeat
from typing import Any

import dill
import numpy as np
import numpy.typing as npt

from swift_loader.batch.arena import Arena, SlotTooSmall, aligned_bytes
from swift_loader.batch.blame import find
from swift_loader.batch.byvalue import ByValue
from swift_loader.batch.patterns import build, pattern_of
from swift_loader.batch.placer import NoRoom, Placer
from swift_loader.batch.rebuild import given_buffers
from swift_loader.batch.reduce import BASE, PlainPickler
from swift_loader.errors import BatchError

__all__ = ["decode", "decode_bytes", "encode", "encode_bytes"]

Buffer = bytes | bytearray | memoryview

_INT64 = struct.Struct("<q")
_TABLE = 1
_DILL = 2
_FLAGS = [bytes([flag]) for flag in range(4)]


def encode(batch: Any, arena: Arena) -> bytes:
    """The skeleton of `batch`; its numbers are laid into `arena` where they do not lie there yet.

    What pickle can't do goes by value or through `dill`, which is slow, each time again. Raises
    `SlotTooSmall`, which says how many bytes will do; `BatchError`, which names the field that
    can't leave this process, and the fix; and whatever a `__reduce__` of the user's raises.
    """
    mark = arena.used_bytes
    try:
        return _encode(batch, arena, by_dill=False)
    except SlotTooSmall:
        raise
    except BatchError as error:
        raise _named(batch, error) from error
    except Exception as error:  # noqa: BLE001 (dill may do it; else this is what counts)
        plain_error = error
    arena.rewind(mark)
    try:
        return _encode(batch, arena, by_dill=True)
    except (SlotTooSmall, BatchError):
        raise
    except Exception as error:
        if isinstance(plain_error, (pickle.PicklingError, TypeError, AttributeError)):
            raise _named(batch, plain_error) from error
        raise plain_error from error


def _named(batch: Any, error: Exception) -> BatchError:
    """The error that says where in the batch is what can't be sent."""
    culprit = find(batch, _failure)
    if culprit is None:  # fails only as a whole
        return BatchError(f"the batch can't be sent: {error}")
    where = f"field {culprit}" if culprit.path else "it"
    return BatchError(f"the batch can't be sent: {where}: {culprit.error}")


def _failure(value: Any) -> Exception | None:
    """Why one value alone can't be sent, None if it can."""
    for by_dill in (False, True):
        try:
            _encode(value, Arena(None), by_dill)
        except SlotTooSmall:
            return None
        except Exception as caught:  # noqa: BLE001 (it is what was asked for)
            error = caught
        else:
            return None
    return error


def decode(skeleton: Buffer, base: npt.NDArray[np.uint8]) -> Any:
    """The batch again, as views over `base`: the bytes [0, used) of the arena it was encoded into.

    Every tensor and array, and whatever is derived from one without a copy, keeps `base` alive.
    They are writable if `base` is. Raises `BatchError` where a class or function is not known here.
    """
    pattern = pattern_of(skeleton) if type(skeleton) is bytes else None
    if pattern is not None:
        return build(pattern, base)
    flag = skeleton[-1]
    buffers: Iterable[npt.NDArray[np.uint8]] = repeat(base)
    if flag & _TABLE:
        (count,) = _INT64.unpack_from(skeleton, len(skeleton) - 9)
        table = struct.unpack_from(f"<{count}q", skeleton, len(skeleton) - 9 - 8 * count)
        buffers = given_buffers(base, table)
    try:
        if flag & _DILL:
            return dill.Unpickler(io.BytesIO(skeleton), buffers=buffers).load()
        return pickle.loads(skeleton, buffers=buffers)
    except (AttributeError, ImportError) as error:
        raise BatchError(
            f"the batch can't be rebuilt in this process: {error}. What a worker makes or imports "
            "by itself, such as a class made in __getitem__, is not known here: define it at the "
            "top level of a module, and import that here too"
        ) from error


def encode_bytes(payload: Buffer, arena: Arena) -> bytes:
    """Lay bytes that the user's own encoder made into `arena`; the skeleton says where they are.

    Raises `SlotTooSmall`, which says how many bytes will do.
    """
    view = memoryview(payload).cast("B")
    offset = arena.reserve(view.nbytes)
    if offset is None:
        raise SlotTooSmall(aligned_bytes(view.nbytes))
    arena.array_at(offset, (view.nbytes,), np.dtype(np.uint8))[:] = np.frombuffer(view, np.uint8)
    return struct.pack("<2q", offset, view.nbytes)


def decode_bytes(skeleton: Buffer, base: npt.NDArray[np.uint8]) -> memoryview:
    """What `encode_bytes` laid down, as a view that keeps `base` alive."""
    offset, nbytes = struct.unpack("<2q", skeleton)
    return base[offset : offset + nbytes].data


def _encode(batch: Any, arena: Arena, by_dill: bool) -> bytes:
    try:
        return _dump(batch, Placer(arena, ByValue() if by_dill else None), by_dill)
    except NoRoom:
        ruler = Arena(None)
        _dump(batch, Placer(ruler, ByValue() if by_dill else None, measuring=True), by_dill)
        raise SlotTooSmall(ruler.wanted_bytes) from None


def _dump(batch: Any, placer: Placer, by_dill: bool) -> bytes:
    file = io.BytesIO()
    given: list[pickle.PickleBuffer] = []
    kind: Any = dill.Pickler if by_dill else PlainPickler
    pickler = kind(file, 5, buffer_callback=given.append)
    pickler.reducer_override = placer.reduce
    pickler.dump(batch)
    flag = _DILL if by_dill else 0
    if given.count(BASE) < len(given):
        table = placer.lay_buffers(given)
        file.write(struct.pack(f"<{len(table)}q", *table) + _INT64.pack(len(table)))
        flag |= _TABLE
    file.write(_FLAGS[flag])
    return file.getvalue()
