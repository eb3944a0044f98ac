"""Which arrays of a data set share memory, so that they go on sharing it in a worker.

An array and a view of it are two objects for a pickle. Where they were laid apart, what a data set
writes into one would not be seen in the other, in silence.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Extent", "Span", "extent_of", "folds", "shared_spans"]

_MOST_TRIED = 64  # if more lie within each other, they are taken to share
_MOST_WORK: Any = 10_000


class Extent(NamedTuple):
    """The addresses of an array's first byte and behind its last one.

    `array`: the array, if there are gaps between its elements.
    """

    start: int
    end: int
    array: npt.NDArray[Any] | None = None

    @property
    def key(self) -> Any:
        """Equal for arrays that are the same elements."""
        if self.array is None:
            return self.start, self.end
        return self.start, self.end, self.array.shape, self.array.strides

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Of all its bytes."""
        shape = (self.end - self.start,)
        return {"version": 3, "data": (self.start, False), "shape": shape, "typestr": "|u1"}


class Span(NamedTuple):
    """Memory that arrays share: from the first byte of all to behind the last."""

    whole: Extent
    parts: list[Extent]


def extent_of(array: npt.NDArray[Any]) -> Extent:
    """Where an array lies that is not empty, and has gaps between its elements."""
    start = end = array.ctypes.data
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            start += (length - 1) * stride
        else:
            end += (length - 1) * stride
    return Extent(start, end + array.itemsize, array)


def folds(array: npt.NDArray[Any]) -> bool:
    """Whether elements of one array may lie in the same place, as those of an expanded one do."""
    reach = array.itemsize
    sizes = zip(map(abs, array.strides), array.shape, strict=True)
    for stride, length in sorted(size for size in sizes if size[1] > 1):
        if stride < reach:
            return True
        reach += stride * (length - 1)
    return False


def shared_spans(extents: list[Extent]) -> list[Span]:
    """The memory in which more than one of these arrays has elements. They are alive meanwhile."""
    if not extents:
        return []
    starts, ends = (np.array([one[i] for one in extents], np.int64) for i in (0, 1))
    order = np.lexsort((-ends, starts))
    reach = np.maximum.accumulate(ends[order])
    apart = np.flatnonzero(starts[order][1:] >= reach[:-1]) + 1
    return [
        Span(Extent(min(one.start for one in parts), max(one.end for one in parts)), parts)
        for first, last in pairwise([0, *apart.tolist(), len(extents)])
        if last - first > 1
        for parts in _joined([extents[i] for i in order[first:last]])
        if len(parts) > 1
    ]


def _joined(group: list[Extent]) -> list[list[Extent]]:
    """Those that share elements together. They are given by address."""
    leads = list(range(len(group)))

    def leader(i: int) -> int:
        while leads[i] != i:
            leads[i] = i = leads[leads[i]]
        return i

    near: list[tuple[int, Extent]] = []  # what the next one may lie in
    for i, extent in enumerate(group):
        near = [(j, one) for j, one in near if one.end > extent.start]
        for j, one in reversed(near):
            if leader(j) != leader(i) and _share(one, extent):
                leads[leader(j)] = leader(i)
        near.append((i, extent))
        if len(near) > _MOST_TRIED:
            for j, _ in near:
                leads[leader(j)] = leader(i)
            near = [(i, Extent(extent.start, max(one.end for _, one in near)))]
    found: dict[int, list[Extent]] = {}
    for i, extent in enumerate(group):
        found.setdefault(leader(i), []).append(extent)
    return list(found.values())


def _share(one: Extent, other: Extent) -> bool:
    """Of two whose bytes are partly the same."""
    if one.array is None and other.array is None:
        return True
    a, b = (np.asarray(each) if each.array is None else each.array for each in (one, other))
    try:
        return np.shares_memory(a, b, max_work=_MOST_WORK)
    except Exception:  # noqa: BLE001 - TooHardError, whose place depends on numpy's version
        return True
