"""The default collate of encoded samples that have one skeleton, without decoding any of them.

Of such samples each number lies at the same place. So a field of the batch is one piece of each,
one after the other: a copy, which is all that collating them takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import PYFUNCTYPE, c_size_t, c_void_p, cast, memmove
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import from_numpy

from swift_loader.batch import rebuild
from swift_loader.batch.arena import Arena
from swift_loader.batch.collate import collate
from swift_loader.batch.patterns import Call, Place

__all__ = ["stacked"]


# It keeps the GIL, which `memmove` lets go: to get it back from a thread that fetches samples takes
# longer than to copy a sample does.
_move = PYFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)(cast(memmove, c_void_p).value or 0)
_LARGE_BYTES = 1 << 20


class _NotAlike(Exception):
    """What collate does with such a field is no copy."""


def stacked(pattern: Any, addresses: Sequence[int], arena: Arena) -> Any:
    """The batch of the samples at `addresses`, whose numbers lie as `pattern` says.

    None where they must be collated one by one.
    """
    try:
        return _part(pattern, addresses, arena)
    except _NotAlike:
        return None


def _part(pattern: Any, addresses: Sequence[int], arena: Arena) -> Any:
    kind = type(pattern)
    if kind is Place:
        rows = _rows(addresses, pattern.offset, pattern.shape, pattern.carrier, arena)
        bits = from_numpy(rows)
        return bits if pattern.dtype is None else bits.view(pattern.dtype)
    if kind is Call:
        return from_numpy(_rows(addresses, *_array_of(pattern), arena))
    if kind is dict:
        return {key: _part(part, addresses, arena) for key, part in pattern.items()}
    if kind is list or kind is tuple:
        return [_part(part, addresses, arena) for part in pattern]
    return collate([pattern] * len(addresses))  # the same in each sample


def _array_of(call: Call) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    """Offset, shape and dtype of an array or a number."""
    if call.function is rebuild.number:
        spec, offset = call.arguments
        return offset, (), np.dtype(spec[1])
    dtype, offset, shape, strides = call.arguments
    if strides is not None or dtype.kind not in "biufc" or not dtype.isnative:
        raise _NotAlike
    return offset, shape, dtype


def _rows(
    addresses: Sequence[int],
    offset: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    arena: Arena,
) -> npt.NDArray[Any]:
    rows = arena.empty_array((len(addresses), *shape), dtype)
    if rows is None:
        rows = np.empty((len(addresses), *shape), dtype)
    nbytes = rows.nbytes // len(addresses)
    target = rows.ctypes.data
    move = _move if nbytes < _LARGE_BYTES else memmove
    for address in addresses:
        move(target, address + offset, nbytes)
        target += nbytes
    return rows
