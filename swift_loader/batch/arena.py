"""A bump allocator over one writable buffer: where a batch's tensors are laid out.

Every piece starts on a multiple of 64 bytes from the start of the buffer (a cache line, and what
the vector units of today's processors like). Nothing is freed singly: `reset` starts over.

    offset 0          64              192
    | float32[8] ...  | int64[16]     | free ...
                                      ^ used_bytes
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["ALIGNMENT_BYTES", "Arena", "SlotTooSmall", "aligned_bytes", "carrier_of"]

ALIGNMENT_BYTES = 64
_ROUND_UP = ALIGNMENT_BYTES - 1
_ROUND_DOWN = ~_ROUND_UP

#: the dtypes that torch and numpy both have, under one name
_NUMPY_OF: dict[torch.dtype, np.dtype[Any]] = {
    getattr(torch, name): np.dtype(name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}


class SlotTooSmall(Exception):
    """The batch needs `needed_bytes` of arena; encoding it again into that many succeeds."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(f"the batch needs {needed_bytes:,} bytes")
        self.needed_bytes = needed_bytes


def aligned_bytes(nbytes: int) -> int:
    """`nbytes` rounded up to a whole number of alignment units."""
    return (nbytes + _ROUND_UP) & _ROUND_DOWN


def carrier_of(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy dtype that holds the bits of `dtype` (unsigned integers for what numpy lacks)."""
    return _NUMPY_OF.get(dtype) or np.dtype(f"uint{8 * dtype.itemsize}")


class Arena:
    """Hands out aligned pieces of `buffer` (writable and contiguous; None holds nothing).

    The pieces keep the buffer alive; the arena itself may go before them. One arena is for one
    thread. `used_bytes` is the end of the last piece handed out; `wanted_bytes` is what it would be
    if every piece asked for had fitted.
    """

    __slots__ = ("address", "buffer", "nbytes", "used_bytes", "wanted_bytes")

    def __init__(self, buffer: memoryview | mmap.mmap | npt.NDArray[np.uint8] | None) -> None:
        self.buffer: npt.NDArray[np.uint8] = (
            np.empty(0, np.uint8)
            if buffer is None or len(buffer) == 0
            else np.frombuffer(buffer, np.uint8)
        )
        if not self.buffer.flags.writeable:
            raise ValueError("an arena needs a writable buffer")
        self.nbytes = self.buffer.nbytes
        self.address: int = self.buffer.ctypes.data
        self.used_bytes = 0
        self.wanted_bytes = 0

    def reset(self) -> None:
        """Forget every piece. The caller knows that nobody reads them any more."""
        self.used_bytes = 0
        self.wanted_bytes = 0

    def rewind(self, used_bytes: int) -> None:
        """Forget the pieces handed out since `used_bytes` was read."""
        self.used_bytes = used_bytes

    def reserve(self, nbytes: int) -> int | None:
        """The offset of `nbytes` fresh bytes, or None when they do not fit."""
        size = (nbytes + _ROUND_UP) & _ROUND_DOWN
        self.wanted_bytes += size
        offset = self.used_bytes
        end = offset + size
        if end > self.nbytes:
            return None
        self.used_bytes = end
        return offset

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """An uninitialised contiguous tensor in the buffer, or None when it does not fit."""
        carrier = _NUMPY_OF.get(dtype)
        if carrier is None:
            integers = self.empty_array(shape, carrier_of(dtype))
            return None if integers is None else torch.from_numpy(integers).view(dtype)
        size = (prod(shape) * carrier.itemsize + _ROUND_UP) & _ROUND_DOWN
        self.wanted_bytes += size
        offset = self.used_bytes
        end = offset + size
        if end > self.nbytes:
            return None
        self.used_bytes = end
        return torch.from_numpy(np.ndarray(shape, carrier, self.buffer, offset))

    def empty_array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
        """The same as a numpy array, of any dtype without objects in it."""
        offset = self.reserve(prod(shape) * dtype.itemsize)
        return None if offset is None else self.array_at(offset, shape, dtype)

    def array_at(self, offset: int, shape: Sequence[int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """The bytes from `offset` on, seen as a contiguous array."""
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, self.buffer, offset)
        return array

    def offset_of(self, address: int, nbytes: int) -> int | None:
        """Where `nbytes` of memory at `address` lie in this arena, or None when they do not."""
        offset = address - self.address
        return offset if offset >= 0 and offset + nbytes <= self.used_bytes else None
