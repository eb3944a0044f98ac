"""Batches built from a skeleton that came before, without unpickling it again.

Batch after batch has the same skeleton, byte for byte, as long as it is plain (tensors in dicts,
lists and tuples) and its shapes stay. Such a skeleton is read once into a *pattern*: the same
structure, with the place of each tensor instead of the tensor. To build from it takes half of the
time that unpickling does, and touches less memory, which counts where samples fill the caches.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import from_numpy

from swift_loader.batch import rebuild

__all__ = ["LONGEST_BYTES", "Call", "Patterns", "Place", "build", "pattern_of", "read_pattern"]

#: longer skeletons are not kept
LONGEST_BYTES = 1 << 14
_MOST_KEPT = 64
_DEEPEST = 32  # well within the limit of recursion
_IMMUTABLE = (type(None), bool, int, float, str)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies; `dtype` where it isn't the carrier's."""

    carrier: np.dtype[Any]
    dtype: torch.dtype | None
    offset: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """Something else that a function of `rebuild` makes; what it is given doesn't change."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class _NotPlain(Exception):
    """The skeleton calls something that is none of `_PLACES`."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _PLACES.get((module, name))
        if found is None:
            raise _NotPlain
        return found


def _place(base: object, name: str, offset: int, *shape: int) -> Place:
    return Place(*rebuild.carrier(name), offset, shape)


def _array(base: object, dtype: Any, *about: Any) -> Call:
    if type(dtype) is not str:
        raise _NotPlain
    return Call(rebuild.array, (np.dtype(dtype), *about))


def _number(base: object, *about: Any) -> Call:
    return Call(rebuild.number, about)


_PLACES: dict[tuple[str, str], Any] = {
    (function.__module__, function.__name__): place
    for function, place in (
        (rebuild.tensor, _place),
        (rebuild.array, _array),
        (rebuild.number, _number),
    )
}


class Patterns:
    """The patterns of the skeletons seen last. A skeleton is read when it comes a second time."""

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}

    def find(self, skeleton: bytes) -> Any:
        """The pattern of `skeleton`; None: it has none, or comes for the first time."""
        if not _may_have_one(skeleton):
            return None
        known = self._known
        if skeleton not in known:
            if len(known) >= _MOST_KEPT:
                known.clear()
            known[skeleton] = _Unread
            return None
        found = known.get(skeleton)  # another thread may have cleared it
        if found is _Unread:
            found = known[skeleton] = read_pattern(skeleton)
        return found


class _Unread:
    """Stands for the pattern of a skeleton that came once."""


pattern_of = Patterns().find


def read_pattern(skeleton: bytes) -> Any:
    """The pattern of `skeleton`; None: it is not plain."""
    if not _may_have_one(skeleton):
        return None
    try:
        pattern = _Reader(io.BytesIO(skeleton), buffers=repeat(b"")).load()
    except _NotPlain:
        return None
    return pattern if _is_plain(pattern, set(), _DEEPEST) else None


def _may_have_one(skeleton: bytes) -> bool:
    """Whether it is short, has no table, and is pickle's: the codec's flag is 0 then."""
    return not skeleton[-1] and len(skeleton) <= LONGEST_BYTES


def _is_plain(part: Any, seen: set[int], depth_left: int) -> bool:
    """Whether `build` makes what unpickling makes. What comes twice must stay one object."""
    kind = type(part)
    if kind in _IMMUTABLE:
        return True
    if not depth_left or (id(part) in seen and kind is not tuple):
        return False
    seen.add(id(part))
    if kind is dict:
        if not all(type(key) in _IMMUTABLE for key in part):
            return False
        part = part.values()
    elif kind is not list and kind is not tuple:
        return kind is Place or kind is Call
    return all(_is_plain(each, seen, depth_left - 1) for each in part)


def build(pattern: Any, base: npt.NDArray[np.uint8]) -> Any:
    """The batch of `pattern`, as views over `base`."""
    kind = type(pattern)
    if kind is Place:  # as `rebuild.tensor` does it; to call that costs most of what is gained
        bits = from_numpy(np.ndarray(pattern.shape, pattern.carrier, base, pattern.offset))
        return bits if pattern.dtype is None else bits.view(pattern.dtype)
    if kind is dict:
        return {key: build(part, base) for key, part in pattern.items()}
    if kind is list:
        return [build(part, base) for part in pattern]
    if kind is tuple:
        return tuple([build(part, base) for part in pattern])
    if kind is Call:
        return pattern.function(base, *pattern.arguments)
    return pattern
