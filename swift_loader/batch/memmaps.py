"""Arrays over files travel by the file's name, so that no process reads what it does not need."""

from __future__ import annotations

import os
import stat
from mmap import ALLOCATIONGRANULARITY
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["SharedFiles", "reduce", "reopen"]

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


class SharedFiles:
    """Where this process has files mapped that it shares with whoever maps them (Linux).

    A tensor made of a `numpy.memmap` knows nothing of the file any more.
    """

    def __init__(self) -> None:
        self._found: list[tuple[int, int, int, Mode, str]] = []  # start, end, offset, mode, name
        try:
            with open("/proc/self/maps") as file:
                lines = file.read().splitlines()
        except OSError:
            return
        for line in lines:
            fields = line.split(maxsplit=5)
            if len(fields) < 6 or fields[1][3] != "s":
                continue
            name = fields[5]
            try:
                status = os.stat(name)
            except OSError:  # it has no name any more
                continue
            if stat.S_ISREG(status.st_mode) and status.st_ino == int(fields[4]):
                start, _, end = fields[0].partition("-")
                # Read-only here: a tensor is writable, and what is written there stays there.
                mode: Mode = "r+" if fields[1][1] == "w" else "c"
                place = int(start, 16), int(end, 16), int(fields[2], 16), mode, name
                self._found.append(place)

    def __bool__(self) -> bool:
        return bool(self._found)

    def reduce(self, start: int, end: int) -> tuple[str, Mode, int, int] | None:
        """Name, mode, offset and size of the part of a file that lies at these addresses."""
        for first, last, offset, mode, name in self._found:
            if first <= start and end <= last:
                return name, mode, offset + start - first, end - start
        return None


def _memmap_below(array: npt.NDArray[Any]) -> Any:
    """The memmap that `array` is or is a view of."""
    below: Any = array
    while isinstance(below, np.ndarray):
        if isinstance(below, np.memmap) and getattr(below, "_mmap", None) is not None:
            return below
        below = below.base
    return None
