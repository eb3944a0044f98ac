"""`SharedList`: millions of small Python objects, once in memory for all processes.

A plain list of dicts that forked or spawned workers read grows in each of them: reading an object
writes its reference count, so pages that were shared are copied. Here the objects lie pickled, one
after the other, in one region of shared memory, and an item is rebuilt when it is asked for (the
remedy that Yuxin Wu describes in "Demystify RAM Usage in Multi-Process Data Loaders", 2022).
"""

from __future__ import annotations

import os
import pickle
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from swift_loader.batch.handles import Handle, current
from swift_loader.transport.memory import create_region, map_shared

__all__ = ["SharedList"]

T = TypeVar("T")
_WRITE_BYTES = 1 << 20


class SharedList(Sequence[T], Generic[T]):
    """A read-only sequence of picklable objects in shared memory.

    An item is a fresh object each time it is read. A slice is a `SharedList` over the same memory.
    Pickled, it is a handle of about a hundred bytes that is good on this machine as long as the
    process that made it lives (or another one has it open); workers on other machines get the
    content.

    Parameters
    ----------
    items:
        Any iterable; consumed once, an item at a time, so a generator over a file never has the
        whole in memory twice.

    Examples
    --------
    >>> rows = SharedList({"path": f"{i}.jpg", "label": i % 10} for i in range(1_000_000))
    >>> rows[3]["label"], len(rows[100:200])
    (3, 100)
    """

    __slots__ = ("_bounds", "_data", "_fd", "_range")

    def __init__(self, items: Iterable[T]) -> None:
        bounds = array("q", [0])
        descriptor = _Descriptor(create_region(0, "list"))
        with open(os.dup(int(descriptor)), "wb", buffering=_WRITE_BYTES) as file:
            for item in items:
                bounds.append(bounds[-1] + file.write(pickle.dumps(item, 5)))
            file.write(b"\0" * (-bounds[-1] % bounds.itemsize))
            bounds.tofile(file)
        self._open(descriptor, len(bounds) - 1, range(len(bounds) - 1))

    def _open(self, descriptor: _Descriptor, count: int, selected: range) -> None:
        region = map_shared(int(descriptor), os.fstat(int(descriptor)).st_size)
        whole = np.frombuffer(region, np.uint8)
        whole.flags.writeable = False
        self._fd: _Descriptor | None = descriptor  # None: over memory that came by value
        self._bounds: NDArray[np.int64] = whole[-8 * (count + 1) :].view(np.int64)
        self._data: memoryview = whole.data
        self._range = selected

    @classmethod
    def _over(cls, other: SharedList[T], selected: range) -> SharedList[T]:
        """`selected` items of `other`, over its memory."""
        new = cls.__new__(cls)
        new._fd, new._bounds, new._data = other._fd, other._bounds, other._data
        new._range = selected
        return new

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory, of the whole list also for a slice."""
        return self._data.nbytes

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> SharedList[T]: ...

    def __getitem__(self, index: int | slice) -> T | SharedList[T]:
        if isinstance(index, slice):
            return self._over(self, self._range[index])
        try:
            place = self._range[index]
        except IndexError:
            raise IndexError(f"index {index} of a SharedList of {len(self)}") from None
        start, stop = self._bounds[place : place + 2].tolist()
        item: T = pickle.loads(self._data[start:stop])
        return item

    def __iter__(self) -> Iterator[T]:
        for index in range(len(self)):
            yield self[index]

    def __repr__(self) -> str:
        return f"SharedList({len(self)} items, {self.nbytes:,} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        count = len(self._bounds) - 1
        shipment = current()
        by_value = shipment is not None and shipment.elsewhere
        if by_value or self._fd is None or sys.platform != "linux":
            # As an array, which travels out of band and is mapped, not copied, by local workers.
            return _from_bytes, (np.frombuffer(self._data, np.uint8), count, self._range)
        if shipment is not None:
            shipment.kept.append(self._fd)
        return _from_handle, (Handle.of(int(self._fd)), count, self._range)


class _Descriptor:
    """Closes with the last list over it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __int__(self) -> int:
        return self._fd

    def __del__(self) -> None:
        os.close(self._fd)


def _from_handle(handle: Handle, count: int, selected: range) -> SharedList[Any]:
    """Open the region through the process that has it."""
    new: SharedList[Any] = SharedList.__new__(SharedList)
    new._open(_Descriptor(handle.open()), count, selected)
    return new


def _from_bytes(data: NDArray[np.uint8], count: int, selected: range) -> SharedList[Any]:
    """A list over an array that holds the region's content."""
    new: SharedList[Any] = SharedList.__new__(SharedList)
    new._fd = None
    new._bounds = data[-8 * (count + 1) :].view(np.int64)
    new._data = data.data
    new._range = selected
    return new
