"""Batches laid into a slot like the one before, without collating, walking and pickling them anew.

Batch after batch of most data sets has the same skeleton: the same fields, dtypes and shapes, so
the same places in the slot. Once that was seen, the samples of the next batch are stacked and
written to these places, field by field, and the skeleton is the one from before. Each field is
looked at on the way. Whatever does not fit, or raises, is left to `swift_loader.batch.collate` and
`swift_loader.batch.codec`, which tell what is wrong with it, or make another skeleton.

What is laid so: tensors, numpy arrays, whole numbers and floats, in dicts, lists and tuples.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from ctypes import memmove
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, from_numpy

from swift_loader.batch.arena import Arena
from swift_loader.batch.collate import LARGE_BYTES, collates_as_torch
from swift_loader.batch.patterns import Place, read_pattern

__all__ = ["Layouts"]

_dtype_of = attrgetter("dtype")
Values = Sequence[Any]  # of one field, one a sample
_Put = Callable[[Values, Arena], object]


class Layouts:
    """How the last batch lay. For one thread."""

    def __init__(self) -> None:
        self._skeleton = b""  # of the batch before
        self._put: _Put | None = None  # lays a batch so, and raises where it is another one
        self._nb_samples = 0
        self._used_bytes = 0

    def lay(self, samples: list[Any], arena: Arena) -> bytes | None:
        """Lay the batch of these samples into the empty `arena`; returns its skeleton.

        None: it is to be made in another way; the arena is empty again then.
        """
        put = self._put
        if put is None:
            return None
        fits = len(samples) == self._nb_samples and self._used_bytes <= arena.nbytes
        try:
            if fits and collates_as_torch():
                put(samples, arena)
                arena.used_bytes = self._used_bytes
                return self._skeleton
        except Exception:  # noqa: BLE001 - making it in the other way raises it again
            fits = False
        self._put, self._skeleton = None, b""
        return None

    def learn(self, samples: list[Any], skeleton: bytes, used_bytes: int) -> None:
        """A batch was made in the other way, by the default collate. If it is like the one before,
        the next one may be, too.
        """
        if skeleton != self._skeleton:
            self._skeleton = skeleton
            return
        pattern = read_pattern(skeleton) if self._put is None else None
        if pattern is not None:
            self._nb_samples, self._used_bytes = len(samples), used_bytes
            self._put = _put_of(samples[0], pattern, len(samples))


class _Differs(Exception):
    """A field is not as it was in the batch before."""


def _put_of(sample: Any, pattern: Any, count: int) -> _Put | None:
    """What lays the values of a field, of which `sample` is one, as `pattern` has it."""
    kind = type(sample)
    if kind is dict:
        if type(pattern) is not dict or list(sample) != list(pattern) or not _names(sample):
            return None
        put = _put_of_fields(list(sample.values()), list(pattern.values()), count)
        return None if put is None else _of_mappings(list(sample), put)
    if kind is tuple or kind is list:
        if type(pattern) is not list or len(sample) != len(pattern):
            return None
        put = _put_of_fields(list(sample), pattern, count)
        return None if put is None else _of_sequences(kind, len(pattern), put)
    if type(pattern) is not Place or not pattern.shape or pattern.shape[0] != count:
        return None
    if kind is Tensor:
        return _of_tensors(sample, pattern)
    if kind is np.ndarray:
        return _of_arrays(sample, pattern)
    if kind is int or kind is float:
        return _of_numbers(kind, pattern)
    return None


_PutFields = Callable[[Sequence[Values], Arena], object]


def _put_of_fields(samples: list[Any], patterns: list[Any], count: int) -> _PutFields | None:
    """What lays the columns of several fields."""
    together = _alike(samples, patterns)
    if together is not None:
        return together
    puts = []
    for sample, pattern in zip(samples, patterns, strict=True):
        put = _put_of(sample, pattern, count)
        if put is None:
            return None
        puts.append(put)

    def lay(columns: Sequence[Values], arena: Arena) -> None:
        for put, column in zip(puts, columns, strict=True):
            put(column, arena)

    return lay


def _of_mappings(keys: list[Any], put: _PutFields) -> _Put:
    def lay(values: Values, arena: Arena) -> None:
        first = values[0]
        if type(first) is not dict or list(first) != keys or not _names(first):
            raise _Differs
        put([[each[key] for each in values] for key in keys], arena)

    return lay


def _of_sequences(kind: type, count: int, put: _PutFields) -> _Put:
    def lay(values: Values, arena: Arena) -> None:
        columns = list(zip(*values, strict=True))
        if type(values[0]) is not kind or len(columns) != count:
            raise _Differs
        put(columns, arena)

    return lay


def _of_numbers(kind: type, place: Place) -> _Put | None:
    wanted = np.dtype(np.int64 if kind is int else np.float64)
    (count,) = place.shape
    if place.carrier != wanted or place.dtype is not None:
        return None
    pack_into = struct.Struct(f"{count}{'q' if kind is int else 'd'}").pack_into
    offset = place.offset

    def lay(values: Values, arena: Arena) -> None:
        if type(values[0]) is not kind:
            raise _Differs
        pack_into(arena.buffer.data, offset, *values)

    return lay


def _of_arrays(sample: Any, place: Place) -> _Put | None:
    dtype, shape, joined = sample.dtype, sample.shape, place.shape
    if not shape or joined[1:] != shape or dtype != place.carrier or place.dtype is not None:
        return None
    joined = (joined[0] * joined[1], *joined[2:])

    def lay(values: Values, arena: Arena) -> None:
        for each in values:
            if type(each) is not np.ndarray or each.dtype != dtype or each.shape != shape:
                raise _Differs
        np.concatenate(values, out=arena.array_at(place.offset, joined, place.carrier))

    return lay


def _of_tensors(sample: Tensor, place: Place) -> _Put | None:
    dtype, one, shape, offset = sample.dtype, sample.shape, place.shape, place.offset
    if shape[1:] != one or (place.dtype or _dtype_of_carrier(place)) is not dtype:
        return None
    if sample.nbytes < LARGE_BYTES:
        nbytes = sample.nbytes * shape[0]

        def lay_small(values: Any, arena: Arena) -> None:
            stacked = _stacked(values, dtype, shape)
            memmove(arena.address + offset, stacked.data_ptr(), nbytes)

        return lay_small

    def lay(values: Any, arena: Arena) -> None:
        first = values[0]
        if type(first) is not Tensor or first.shape != one or not first.is_cpu:
            raise _Differs
        if first.dtype is not dtype or len(set(map(_dtype_of, values))) > 1:
            raise _Differs
        room = from_numpy(arena.array_at(offset, shape, place.carrier))
        if place.dtype is not None:
            room = room.view(place.dtype)
        stacked = torch.stack(values, out=room)
        if stacked is not room or stacked.requires_grad:
            raise _Differs

    return lay


def _alike(samples: list[Any], patterns: list[Any]) -> _PutFields | None:
    """Lays several small fields that collate stacks by one call."""
    if len(samples) < 2:
        return None
    first, place = samples[0], patterns[0]
    if type(first) is not Tensor or type(place) is not Place or first.nbytes >= LARGE_BYTES:
        return None
    dtype, shape = first.dtype, place.shape
    for sample, each in zip(samples, patterns, strict=True):
        if type(sample) is not Tensor or sample.dtype is not dtype or sample.shape != first.shape:
            return None
        if type(each) is not Place or each.shape != shape or each.shape[1:] != first.shape:
            return None
    if (place.dtype or _dtype_of_carrier(place)) is not dtype:
        return None
    nbytes = first.nbytes * shape[0]
    offsets = [each.offset for each in patterns]
    whole = shape[0] * len(samples), *shape[1:]
    in_one_piece = offsets == [offsets[0] + n * nbytes for n in range(len(offsets))]

    def lay(columns: Sequence[Values], arena: Arena) -> None:
        for column in columns:  # or the stack would promote a field to the dtype of another one
            if column[0].dtype is not dtype:
                raise _Differs
        address = arena.address
        stacked = _stacked(list(chain.from_iterable(columns)), dtype, whole)
        source = stacked.data_ptr()
        if in_one_piece:
            memmove(address + offsets[0], source, nbytes * len(offsets))
            return
        for offset in offsets:
            memmove(address + offset, source, nbytes)
            source += nbytes

    return lay


def _stacked(tensors: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The stack of these, in one piece of ordinary memory."""
    stacked = torch.stack(tensors)
    if type(stacked) is not Tensor or stacked.dtype is not dtype or stacked.shape != shape:
        raise _Differs
    if not (stacked.is_cpu and stacked.is_contiguous()) or stacked.requires_grad:
        raise _Differs
    return stacked


def _names(keys: Iterable[Any]) -> bool:
    """Whether they are all texts: those that are equal are of the same type, too."""
    return set(map(type, keys)) == {str}


def _dtype_of_carrier(place: Place) -> torch.dtype:
    return from_numpy(np.empty(0, place.carrier)).dtype
