"""The default collate: samples to one batch, large tensors stacked straight into the slot.

It follows `torch.utils.data.default_collate`, and the types that a user registered there; it
collates dataclasses and None besides. Small results are made in ordinary memory: copying a few
kilobytes later costs less than the care taken here.
"""

from __future__ import annotations

import struct
from collections import abc
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, from_numpy
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils.collate import default_collate_fn_map as registry

from swift_loader.batch.arena import ALIGNMENT_BYTES, Arena
from swift_loader.batch.mismatch import Mismatch, explain, keys_differ, lengths_differ
from swift_loader.batch.offsets import Offsets, joined
from swift_loader.batch.tree import DATACLASS, MAPPING, NAMED_TUPLE, SEQUENCE, Branch, branch_of
from swift_loader.errors import BatchError

__all__ = ["LARGE_BYTES", "collate", "collates_as_torch"]

_dtype_of = attrgetter("dtype")
Values = Sequence[Any]  # of one field, one a sample; never empty

#: samples from this size on go straight into the arena: looking at each costs less than a copy
LARGE_BYTES = 4096


def collate(
    samples: Values, arena: Arena | None = None, indices: Sequence[int] | None = None
) -> Any:
    """One batch of `samples`, field by field.

    Tensors are stacked along a new first dimension; numpy arrays and numbers become tensors (float:
    float64, int: int64, bool: bool); strings and bytes stay a sequence; mappings, sequences, named
    tuples and dataclasses are collated within (a tuple becomes a list, as torch has it); None stays
    None where every sample has it. Types registered in torch's `default_collate_fn_map` are
    collated by what is registered there; `Offsets` are joined. Nothing in the batch requires grad.

    Parameters
    ----------
    samples:
        What the dataset returned.
    arena:
        Where large results go as long as they fit.
    indices:
        The samples' places in the dataset; only for the error message.

    Raises
    ------
    BatchError
        The samples don't fit together, or are of a type that can't be collated. Names
        the field, what differs in which samples, and the fix.
    """
    if not samples:
        raise BatchError("there are no samples to collate")
    try:
        return _Collator(arena).values(samples)
    except Mismatch as mismatch:
        raise BatchError(mismatch.message(indices)) from mismatch.__cause__


def collates_as_torch() -> bool:
    """Whether torch's table of collate functions is as torch made it."""
    return registry == _REGISTRY_OF_TORCH


class _Collator:
    """Collates one batch."""

    __slots__ = ("_arena", "_methods")

    def __init__(self, arena: Arena | None) -> None:
        self._arena = arena
        self._methods = _METHODS if collates_as_torch() else {}

    def values(self, values: Values) -> Any:
        """The values of one field, of whatever type the first one is."""
        method = self._methods.get(type(values[0]))
        return method(self, values) if method else self._unusual(values)

    def tensors(self, tensors: Sequence[Tensor]) -> Tensor:
        first = tensors[0]
        if first.layout is not torch.strided or first.is_nested or not first.is_cpu:
            raise explain(tensors)
        try:
            stacked = torch.stack(tensors, out=self._room_for(tensors))  # type: ignore[arg-type]
        except (RuntimeError, TypeError) as error:
            if any(isinstance(each, Tensor) and each.requires_grad for each in tensors):
                return self.tensors([each.detach() for each in tensors])
            raise explain(tensors, error) from error
        return stacked.detach() if stacked.requires_grad else stacked

    def _room_for(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """Room in the arena for the stack, where it is worth it."""
        first = tensors[0]
        if self._arena is None or first.nbytes < LARGE_BYTES or type(first) is not Tensor:
            return None
        try:
            if len(set(map(_dtype_of, tensors))) > 1:
                return None  # torch finds the common one
        except AttributeError:  # one of them is no tensor, which torch says
            return None
        return self._arena.empty((len(tensors), *first.shape), first.dtype)

    def arrays(self, arrays: Sequence[npt.NDArray[Any]]) -> Tensor:
        first = arrays[0]
        kind, dtype, shape = type(first), first.dtype, first.shape
        if dtype.kind not in "biufc":
            raise explain(arrays)
        alike = kind is np.ndarray or kind is np.memmap
        for each in arrays:
            if type(each) is not kind or each.dtype != dtype or each.shape != shape:
                alike = False
                break
        try:
            if not alike:
                return self.tensors([torch.as_tensor(each, device="cpu") for each in arrays])
            return from_numpy(self._joined(arrays))
        except (TypeError, ValueError, RuntimeError) as error:
            raise explain(arrays, error) from error

    def _joined(self, arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """`numpy.stack` of arrays alike, without its checks."""
        first = arrays[0]
        shape, dtype = (len(arrays), *first.shape), first.dtype.newbyteorder("=")
        joined = None
        if self._arena is not None and first.nbytes >= LARGE_BYTES:
            joined = self._arena.empty_array(shape, dtype)
        if joined is None:
            joined = np.empty(shape, dtype)
        if first.ndim:
            np.concatenate(arrays, out=joined.reshape(shape[0] * shape[1], *shape[2:]))
        else:
            joined[...] = arrays
        return joined

    def numpy_scalars(self, scalars: Values) -> Tensor:
        kind = type(scalars[0])
        try:
            if all(type(each) is kind for each in scalars):
                return from_numpy(np.array(scalars, kind))
            return torch.as_tensor(scalars, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise explain(scalars, error) from error

    def integers(self, numbers: Values) -> Tensor:
        if type(numbers[0]) is bool:
            return self._numbers(numbers, None)
        packed = np.empty(len(numbers), np.int64)
        try:
            struct.pack_into(f"{len(numbers)}q", packed.data, 0, *numbers)
        except (struct.error, TypeError):  # other numbers among them, or too large ones
            return self._numbers(numbers, None)
        return from_numpy(packed)

    def floats(self, numbers: Values) -> Tensor:
        packed = np.empty(len(numbers), np.float64)
        try:
            struct.pack_into(f"{len(numbers)}d", packed.data, 0, *numbers)
        except (struct.error, TypeError):
            return self._numbers(numbers, torch.float64)
        return from_numpy(packed)

    def _numbers(self, numbers: Values, dtype: torch.dtype | None) -> Tensor:
        try:
            return torch.tensor(numbers, dtype=dtype, device="cpu")
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise explain(numbers, error) from error

    def strings(self, strings: Values) -> Values:
        return strings

    def offsets(self, rows: Sequence[Offsets]) -> Tensor:
        if any(type(row) is not Offsets for row in rows):
            raise explain(rows)
        try:
            return from_numpy(joined(rows))
        except (OverflowError, IndexError) as error:
            raise explain(rows, error) from error

    def nothing(self, values: Values) -> None:
        if any(each is not None for each in values):
            raise explain(values)

    def mappings(self, mappings: Sequence[Mapping[Any, Any]]) -> Any:
        first = mappings[0]
        keys = list(first)
        try:
            columns = [[each[key] for each in mappings] for key in keys]
        except (KeyError, TypeError, IndexError) as error:
            raise keys_differ(mappings, error) from error
        collated = self._fields(columns, lambda n: f"[{keys[n]!r}]")
        return MAPPING.rebuilt(first, collated)

    def sequences(self, sequences: Sequence[Sequence[Any]]) -> Any:
        first = sequences[0]
        try:
            columns = list(zip(*sequences, strict=True))
        except (ValueError, TypeError) as error:
            raise lengths_differ(sequences, error) from error
        collated = self._fields(columns, lambda n: f"[{n}]")
        return collated if isinstance(first, tuple) else SEQUENCE.rebuilt(first, collated)

    def named_tuples(self, tuples: Sequence[Any]) -> Any:
        first = tuples[0]
        if isinstance(first, PackedSequence):  # its fields, each stacked, would be none
            raise explain(tuples)
        return NAMED_TUPLE.rebuilt(first, self._attributes(tuples, first._fields, tuple))

    def dataclasses(self, instances: Values) -> Any:
        first = instances[0]
        return DATACLASS.rebuilt(first, self._attributes(instances, DATACLASS.steps(first)))

    def _attributes(
        self, objects: Values, names: Sequence[str], column: Callable[[Any], Values] = list
    ) -> list[Any]:
        """The fields of the batch. One of texts is not stacked: it is a `column`, list or tuple."""
        try:
            columns = [column(getattr(each, name) for each in objects) for name in names]
        except AttributeError as error:
            raise explain(objects, error) from error
        return self._fields(columns, lambda n: f".{names[n]}")

    def _fields(self, columns: Sequence[Values], step: Callable[[int], str]) -> list[Any]:
        """Each column collated; `step(n)` names the n-th in an error."""
        if len(columns) > 1 and type(columns[0][0]) is Tensor:
            together = self._together(columns)
            if together is not None:
                return together
        collated: list[Any] = []
        try:
            for column in columns:
                collated.append(self.values(column))
        except Mismatch as mismatch:
            mismatch.within(step(len(collated)))
            raise
        return collated

    def _together(self, columns: Sequence[Sequence[Tensor]]) -> list[Tensor] | None:
        """Several small fields alike, stacked by one call, which costs as much as for one field.

        They share a storage then, which nobody sees once they are in the arena; so only with one.
        """
        first = columns[0][0]
        if self._arena is None or first.layout is not torch.strided or not first.is_cpu:
            return None
        if first.is_nested or first.nbytes >= LARGE_BYTES:
            return None
        dtype, shape = first.dtype, first.shape
        for head, *_ in columns:
            if type(head) is not Tensor or head.dtype is not dtype or head.shape != shape:
                return None
        try:
            stacked = torch.stack(list(chain.from_iterable(columns)))
        except (RuntimeError, TypeError):
            return None  # one by one, to find out which
        if type(stacked) is not Tensor or stacked.dtype is not dtype:
            return None
        if first.nbytes * len(columns[0]) % ALIGNMENT_BYTES == 0:
            room = self._arena.empty(stacked.shape, dtype)
            stacked = stacked if room is None else room.copy_(stacked.detach())
        return list(stacked.detach().view(len(columns), len(columns[0]), *shape).unbind())

    def _unusual(self, values: Values) -> Any:
        """A type that isn't in the table, or any type while the user has changed torch's registry.

        The order of the questions is torch's.
        """
        first = values[0]
        if type(first) is Offsets:
            return self.offsets(values)
        function = registry.get(type(first)) or next(
            (function for key, function in registry.items() if isinstance(first, key)), None
        )
        if function in _METHOD_FOR:
            return _METHOD_FOR[function](self, values)
        if function is not None:
            return function(values, collate_fn_map=self._registry_with_arena())
        if first is None:
            return self.nothing(values)
        branch = branch_of(first) or (SEQUENCE if isinstance(first, abc.Sequence) else None)
        if branch is not None:
            return _METHOD_OF[branch](self, values)
        raise explain(values)

    def _registry_with_arena(self) -> dict[Any, Any]:
        """What a user's function hands on when it collates what it found inside."""

        def bound(method: Callable[..., Any]) -> Callable[..., Any]:
            return lambda values, *, collate_fn_map=None: method(self, values)

        handed_on = {
            key: bound(_METHOD_FOR[function]) if function in _METHOD_FOR else function
            for key, function in registry.items()
        }
        return {**handed_on, object: bound(_Collator.values)}


#: torch's functions, and what does the same here
_METHOD_FOR: dict[Any, Callable[[_Collator, Any], Any]] = {
    torch_collate.collate_tensor_fn: _Collator.tensors,
    torch_collate.collate_numpy_array_fn: _Collator.arrays,
    torch_collate.collate_numpy_scalar_fn: _Collator.numpy_scalars,
    torch_collate.collate_float_fn: _Collator.floats,
    torch_collate.collate_int_fn: _Collator.integers,
    torch_collate.collate_str_fn: _Collator.strings,
}
_METHOD_OF: dict[Branch, Callable[[_Collator, Any], Any]] = {
    MAPPING: _Collator.mappings,
    NAMED_TUPLE: _Collator.named_tuples,
    SEQUENCE: _Collator.sequences,
    DATACLASS: _Collator.dataclasses,
}
#: the short way for the types that are asked for most, while the registry is as torch made it
_METHODS: dict[type, Callable[[_Collator, Any], Any]] = {
    Tensor: _Collator.tensors,
    np.ndarray: _Collator.arrays,
    np.memmap: _Collator.arrays,
    Offsets: _Collator.offsets,
    float: _Collator.floats,
    int: _Collator.integers,
    bool: _Collator.integers,
    str: _Collator.strings,
    bytes: _Collator.strings,
    dict: _Collator.mappings,
    list: _Collator.sequences,
    tuple: _Collator.sequences,
    type(None): _Collator.nothing,
}
#: the registry as torch made it, whatever the user had put into it before this module was imported
_REGISTRY_OF_TORCH = {
    **{k: f for k, f in registry.items() if f.__module__ == torch_collate.__name__},
    Tensor: torch_collate.collate_tensor_fn,
    np.ndarray: torch_collate.collate_numpy_array_fn,
    (np.bool_, np.number, np.object_): torch_collate.collate_numpy_scalar_fn,
    float: torch_collate.collate_float_fn,
    int: torch_collate.collate_int_fn,
    str: torch_collate.collate_str_fn,
    bytes: torch_collate.collate_str_fn,
}
