"""Lays the buffers of a batch into an arena while it is pickled."""

from __future__ import annotations

from ctypes import memmove
from types import FunctionType
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from swift_loader.batch import rebuild
from swift_loader.batch.arena import Arena, carrier_of
from swift_loader.batch.byvalue import ByValue
from swift_loader.batch.reduce import BASE, DTYPE_NAMES, Reducer

__all__ = ["NoRoom", "Placer"]

#: below this an array is copied without asking whether it lies in the arena: asking costs as much
_WORTH_ASKING_BYTES = 4096

_rebuild_tensor = rebuild.tensor


class NoRoom(Exception):
    """The arena is full; the pickling is given up."""


class Placer(Reducer):
    """Copies buffers into `arena`, except those that lie in it already.

    `measuring`: the arena holds nothing, and its `wanted_bytes` is all that is asked for, so it
    goes on where something does not fit.
    """

    def __init__(
        self, arena: Arena, by_value: ByValue | None = None, measuring: bool = False
    ) -> None:
        super().__init__(by_value)
        self._arena = arena
        self._address = arena.address
        self._nbytes = arena.nbytes
        self._measuring = measuring

    def reduce(self, obj: Any) -> Any:
        """The short way for an ordinary tensor, and the long one for everything else."""
        if type(obj) is not Tensor:
            if type(obj) is FunctionType and self._by_value is None:
                return NotImplemented
            return super().reduce(obj)
        try:
            address = obj.data_ptr()
            name = DTYPE_NAMES[obj.dtype]
            shape = obj.shape
        except (RuntimeError, KeyError):  # a layout without one piece of memory, or an odd dtype
            return self._tensor(obj)
        if not (address and obj.is_cpu and obj.is_contiguous()) or obj.__dict__:
            return self._tensor(obj)
        if obj.is_neg() or obj.is_conj():
            return self._tensor(obj)
        offset = address - self._address
        if not 0 <= offset < self._nbytes:
            offset = self._move(address, obj.nbytes)
        return _rebuild_tensor, (BASE, name, offset, *shape)

    def lay_tensor(self, tensor: Tensor) -> int:
        if tensor.is_contiguous():
            return self._move(tensor.data_ptr(), tensor.nbytes)
        offset = self._arena.reserve(tensor.nbytes)
        if offset is None:
            return self._missed()
        carrier = carrier_of(tensor.dtype)
        target = torch.from_numpy(self._arena.array_at(offset, tensor.shape, carrier))
        target.copy_(tensor if target.dtype is tensor.dtype else tensor.view(target.dtype))
        return offset

    def lay_array(self, array: npt.NDArray[Any]) -> int:
        arena = self._arena
        if array.nbytes >= _WORTH_ASKING_BYTES and array.flags.c_contiguous:
            offset = arena.offset_of(array.ctypes.data, array.nbytes)
            if offset is not None:
                return offset
        offset = arena.reserve(array.nbytes)
        if offset is None:
            return self._missed()
        if array.nbytes:
            arena.array_at(offset, array.shape, array.dtype)[...] = array
        return offset

    def _move(self, address: int, nbytes: int) -> int:
        offset = self._arena.reserve(nbytes)
        if offset is None:
            return self._missed()
        memmove(self._address + offset, address, nbytes)
        return offset

    def _missed(self) -> int:
        if self._measuring:
            return 0
        raise NoRoom
