"""A batch to bytes and back, without copying it again.

The *skeleton* is a pickle (protocol 5) of everything but the numbers; the numbers of every tensor
and array lie in the arena. A tensor is pickled as

    rebuild.tensor(base, dtype name, offset, *shape)

where `base` is one out-of-band buffer for the whole batch: when the batch is decoded, it is the
array over the slot that every view then holds. After the pickle's end comes a trailer:

    offset, nbytes, offset, nbytes, ... , count     int64 little-endian; only if flag & TABLE
    flag                                            one byte

The table lists the buffers that objects unknown here (data frames, say) gave out of band.

What is exact: types, dtypes, shapes, values, strides of dense layouts. What is not: memory shared
between tensors of a batch is split, gaps between strides are closed, and a plain tensor that
requires grad arrives detached (a graph can't leave its process).
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

import dill
import numpy as np
import numpy.typing as npt

from swift_loader.batch.arena import Arena, SlotTooSmall, aligned_bytes
from swift_loader.batch.placer import NoRoom, Placer
from swift_loader.errors import BatchError

__all__ = ["decode", "decode_bytes", "encode", "encode_bytes"]

Buffer = bytes | bytearray | memoryview

_TABLE = 1
_DILL = 2
_FLAGS = [bytes([flag]) for flag in range(4)]


def encode(batch: Any, arena: Arena) -> bytes:
    """The skeleton of `batch`; its numbers are laid into `arena` where they do not lie there yet.

    Raises:
        SlotTooSmall: the arena is too small; says how many bytes will do.
        BatchError: something in the batch can't leave this process; says where it is, and the fix.
    """
    mark = arena.used_bytes
    try:
        return _encode(_Plain, batch, arena, 0)
    except (SlotTooSmall, BatchError):
        raise
    except Exception as error:  # noqa: BLE001 (whatever a __reduce__ of the user's raises)
        plain_error = error
    arena.rewind(mark)
    try:
        return _encode(_Dill, batch, arena, _DILL)
    except (SlotTooSmall, BatchError):
        raise
    except Exception as error:
        raise plain_error from error


def decode(skeleton: Buffer, base: npt.NDArray[np.uint8]) -> Any:
    """The batch again, as views over `base`: the bytes [0, used) of the arena it was encoded into.

    Every tensor and array, and whatever is derived from one without a copy, keeps `base` alive.
    They are writable if `base` is.
    """
    flag = skeleton[-1]
    if flag == 0:
        return pickle.loads(skeleton, buffers=(base,))[1]
    buffers: list[npt.NDArray[np.uint8]] = [base]
    if flag & _TABLE:
        (count,) = struct.unpack_from("<q", skeleton, len(skeleton) - 9)
        table = struct.unpack_from(f"<{2 * count}q", skeleton, len(skeleton) - 9 - 16 * count)
        for offset, nbytes in zip(table[::2], table[1::2], strict=True):
            buffers.append(base[offset : offset + nbytes])
    if flag & _DILL:
        return dill.Unpickler(io.BytesIO(skeleton), buffers=buffers).load()[1]
    return pickle.loads(skeleton, buffers=buffers)[1]


def encode_bytes(payload: Buffer, arena: Arena) -> bytes:
    """Lay bytes that the user's own encoder made into `arena`; the skeleton says where they are.

    Raises:
        SlotTooSmall: the arena is too small; says how many bytes will do.
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


class _Plain(pickle.Pickler):
    """The C pickler; a subclass, so that it takes an attribute."""


class _Dill(dill.Pickler):  # type: ignore[misc]
    """For lambdas, local classes and the like. `recurse`: only the globals that are used."""

    def __init__(self, file: io.BytesIO, protocol: int, **options: Any) -> None:
        super().__init__(file, protocol, recurse=True, **options)


def _encode(kind: Any, batch: Any, arena: Arena, flag: int) -> bytes:
    try:
        return _dump(kind, batch, Placer(arena), flag)
    except NoRoom:
        ruler = Arena(None)
        _dump(kind, batch, Placer(ruler, measuring=True), flag)
        raise SlotTooSmall(ruler.wanted_bytes) from None


def _dump(kind: Any, batch: Any, placer: Placer, flag: int) -> bytes:
    file = io.BytesIO()
    pickler = kind(file, 5, buffer_callback=placer.buffer)
    pickler.reducer_override = placer.reduce
    pickler.dump((placer.base, batch))
    table = placer.table
    if table:
        file.write(struct.pack(f"<{len(table) + 1}q", *table, len(table) // 2))
        flag |= _TABLE
    file.write(_FLAGS[flag])
    return file.getvalue()
