"""Samples that look like one that was encoded before are laid without encoding them again.

Sample after sample of a data set has the same structure, dtypes and shapes. Such a sample has the
skeleton of the one before, and its numbers lie at the same places. So nothing is pickled, and large
tensors are written straight from where the data set has left them.
"""

from __future__ import annotations

import struct
from ctypes import c_char, memmove
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from swift_loader.batch import rebuild
from swift_loader.batch.patterns import Call, Place, read_pattern

__all__ = ["Alike"]

_LARGE_BYTES = 1 << 14  # of which it pays to be written from where it is
_MOST_PIECES = 512
_INT64_END = 1 << 63


class _Tensor(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class _Array(NamedTuple):
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class _Number(NamedTuple):
    format: str  # of `struct`
    kind: type
    offset: int


_Found = tuple[Any, int, Any]
"""What a leaf looks like, its address (0 for a number), and itself."""


class _Differs(Exception):
    """The sample does not look like that, or what it looks like is not so simple."""


class Alike:
    """Samples with this skeleton, whose numbers take `numbers` bytes."""

    def __init__(self, skeleton: bytes, numbers: int) -> None:
        self.skeleton = skeleton
        self.numbers = numbers
        try:
            self._looks = _looks_of(read_pattern(skeleton))
        except _Differs:
            self._looks = _Differs

    def pieces(self, sample: Any, scratch: NDArray[np.uint8]) -> list[Any] | None:
        """Buffers that make up the sample's numbers: views over it and over `scratch`.

        None where the sample has another skeleton, or `scratch` has less than `numbers` bytes.
        """
        if len(scratch) < self.numbers:
            return None
        found: list[_Found] = []
        try:
            _compare(self._looks, sample, found, set())
        except _Differs:
            return None
        return _laid(found, scratch, self.numbers)


def _looks_of(pattern: Any) -> Any:
    """The pattern, with what is to be compared in each place."""
    kind = type(pattern)
    if kind is Place:
        dtype = pattern.dtype or from_numpy(np.empty(0, pattern.carrier)).dtype
        nbytes = prod(pattern.shape) * pattern.carrier.itemsize
        return _Tensor(dtype, pattern.shape, pattern.offset, nbytes)
    if kind is Call and pattern.function is rebuild.number:
        format, offset = pattern.arguments
        return _Number(format, int if format[-1] == "q" else float, offset)
    if kind is Call:
        if pattern.function is not rebuild.array or pattern.arguments[3] is not None:
            raise _Differs
        dtype, offset, shape, _ = pattern.arguments
        return _Array(dtype, shape, offset, prod(shape) * dtype.itemsize)
    if kind is dict:
        if any(type(key) is float for key in pattern):
            raise _Differs
        return {key: _looks_of(part) for key, part in pattern.items()}
    if kind is list or kind is tuple:
        return kind([_looks_of(part) for part in pattern])
    if kind is float:  # there are two zeros that are equal
        raise _Differs
    return pattern


def _compare(looks: Any, part: Any, found: list[_Found], seen: set[int]) -> None:
    """Add each tensor, array and number to `found`. Raises `_Differs`."""
    kind = type(looks)
    if kind is _Number:
        if type(part) is not looks.kind:
            raise _Differs
        if looks.kind is int and not -_INT64_END <= part < _INT64_END:
            raise _Differs
        found.append((looks, 0, part))
        return
    if kind is _Tensor:
        found.append((looks, _address_of_tensor(looks, part), part))
    elif kind is _Array:
        found.append((looks, _address_of_array(looks, part), part))
    elif type(part) is not kind:
        raise _Differs
    elif kind is dict or kind is list or kind is tuple:
        if len(part) != len(looks):
            raise _Differs
        values, others = part, looks
        if kind is dict:
            for own, key in zip(part, looks, strict=True):
                if type(own) is not type(key) or own != key:
                    raise _Differs
            values, others = part.values(), looks.values()
        for each, other in zip(values, others, strict=True):
            _compare(other, each, found, seen)
    else:
        if part != looks:
            raise _Differs
        return
    if kind is not tuple:
        if id(part) in seen:  # what comes twice is one object in its skeleton
            raise _Differs
        seen.add(id(part))


def _address_of_tensor(looks: _Tensor, tensor: Any) -> int:
    if type(tensor) is not Tensor:
        raise _Differs
    try:
        address: int = tensor.data_ptr()
        if tensor.dtype is not looks.dtype or tensor.shape != looks.shape:
            raise _Differs
    except RuntimeError as error:  # a layout without one piece of memory
        raise _Differs from error
    if not (tensor.is_cpu and tensor.is_contiguous()) or tensor.__dict__:
        raise _Differs
    if tensor.is_neg() or tensor.is_conj() or not (address or not looks.nbytes):
        raise _Differs
    return address


def _address_of_array(looks: _Array, array: Any) -> int:
    if type(array) is not np.ndarray or array.dtype != looks.dtype or array.shape != looks.shape:
        raise _Differs
    if not array.flags.c_contiguous or array.dtype.metadata:
        raise _Differs
    address: int = array.ctypes.data
    return address


def _laid(found: list[_Found], scratch: NDArray[np.uint8], numbers: int) -> list[Any] | None:
    pieces: list[Any] = []
    start, data = scratch.ctypes.data, scratch.data
    end = 0  # of what is in `pieces`
    for looks, address, part in found:
        if type(looks) is _Number:
            struct.pack_into(looks.format, data, looks.offset, part)
        elif looks.nbytes < _LARGE_BYTES:
            memmove(start + looks.offset, address, looks.nbytes)
        else:
            if looks.offset > end:
                pieces.append(data[end : looks.offset])
            piece: Any = (c_char * looks.nbytes).from_address(address)
            piece.owner = part
            pieces.append(piece)
            end = looks.offset + looks.nbytes
    if end < numbers:
        pieces.append(data[end:numbers])
    return pieces if len(pieces) <= _MOST_PIECES else None
