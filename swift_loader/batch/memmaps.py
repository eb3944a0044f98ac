"""Arrays over files travel by the file's name, so that no process reads what it does not need."""

from __future__ import annotations

import os
from mmap import ALLOCATIONGRANULARITY
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["reduce", "reopen"]

Mode = Literal["r", "r+", "c"]


def reduce(array: npt.NDArray[Any]) -> tuple[Any, ...] | None:
    """How to pickle `array` by its file; None if it isn't over a file that others can open.

    What was written to a map of mode "c" is in no file, and stays behind.
    """
    over = _memmap_below(array)
    if over is None or over.filename is None or not os.path.exists(over.filename):
        return None
    if array.dtype.hasobject or array.size == 0:
        return None
    address = array.ctypes.data
    spans = [stride * (count - 1) for stride, count in zip(array.strides, array.shape, strict=True)]
    below = -sum(span for span in spans if span < 0)
    above = sum(span for span in spans if span > 0) + array.itemsize
    mapped = np.frombuffer(over._mmap, np.uint8).ctypes.data
    file_start = over.offset - over.offset % ALLOCATIONGRANULARITY
    kind = np.memmap if isinstance(array, np.memmap) else np.ndarray
    return reopen, (
        os.fspath(over.filename),
        "r+" if over.mode == "w+" else over.mode,
        file_start + address - below - mapped,
        below + above,
        (kind, array.shape, array.dtype, below, array.strides),
    )


def reopen(
    filename: str, mode: Mode, start_bytes: int, nbytes: int, view: tuple[Any, ...]
) -> npt.NDArray[Any]:
    """The array again: a view of `nbytes` of the file from `start_bytes` on."""
    kind, shape, dtype, offset, strides = view
    raw = np.memmap(filename, np.uint8, mode, start_bytes, (nbytes,))
    array: npt.NDArray[Any] = np.ndarray.__new__(kind, shape, dtype, raw, offset, strides)
    if kind is np.memmap:
        array.__array_finalize__(raw)  # takes over the file's name and mode
    return array


def _memmap_below(array: npt.NDArray[Any]) -> Any:
    """The memmap that `array` is or is a view of."""
    below: Any = array
    while isinstance(below, np.ndarray):
        if isinstance(below, np.memmap) and getattr(below, "_mmap", None) is not None:
            return below
        below = below.base
    return None
