"""The structure of a nested batch: branches, leaves, and the same branches with other leaves.

| branch | its parts | rebuilt as |
|---|---|---|
| mapping | its values, by key | a copy with other values; from a dict where it can't be changed |
| named tuple | its fields, by place | its type, given the parts |
| other sequence | its items, by place | a copy with other items, or its type, or a list |
| dataclass | the fields that are set, by name | a copy with other values; `__init__` is not asked |

The order of these questions is torch's. All else is a leaf: tensors, arrays, numbers, text, bytes,
sets, None, and objects of other classes. Collating, moving, cutting and measuring all ask here, so
what one of them supports, all do.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from array import array
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import getitem, is_
from typing import Any

import numpy as np
from torch import Tensor, layout, sparse_bsc, sparse_bsr, sparse_coo, sparse_csc, sparse_csr

from swift_loader.errors import BatchError

__all__ = [
    "DATACLASS",
    "MAPPING",
    "NAMED_TUPLE",
    "SEQUENCE",
    "Branch",
    "approximate_bytes",
    "branch_of",
    "dense_parts",
    "map_leaves",
    "walk",
]

_COMPRESSED: dict[layout, tuple[str, str]] = {
    sparse_csr: ("crow_indices", "col_indices"),
    sparse_bsr: ("crow_indices", "col_indices"),
    sparse_csc: ("ccol_indices", "row_indices"),
    sparse_bsc: ("ccol_indices", "row_indices"),
}
_OBJECT_BYTES = 64  # of a container or a tensor, beside what it holds


@dataclasses.dataclass(frozen=True, slots=True)
class Branch:
    """How one kind of container is taken apart and rebuilt.

    `steps`: what leads to its parts, in order: keys, places or names. `rebuilt`: the container with
    other parts.
    """

    steps: Callable[[Any], Sequence[Any]]
    part: Callable[[Any, Any], Any]
    rebuilt: Callable[[Any, Sequence[Any]], Any]

    def parts(self, node: Any) -> list[Any]:
        return [self.part(node, step) for step in self.steps(node)]


def branch_of(node: Any) -> Branch | None:
    """The kind of container that `node` is; None for a leaf."""
    kind = type(node)
    if kind in _KNOWN:
        return _KNOWN[kind]
    if isinstance(node, _LEAVES):
        return None
    if isinstance(node, abc.Mapping):
        return MAPPING
    if isinstance(node, tuple):
        return NAMED_TUPLE if hasattr(node, "_fields") else SEQUENCE
    if isinstance(node, abc.Sequence):
        return SEQUENCE
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return DATACLASS
    return None


def map_leaves(
    function: Callable[[Any], Any], batch: Any, whole: Callable[[Any], bool] | None = None
) -> Any:
    """`batch` with `function` of each leaf in its place.

    What isn't a plain dict, list or tuple counts as a leaf where `whole` says so, and is kept where
    none of its leaves has changed. Raises `BatchError` where the batch holds itself.
    """

    def mapped(node: Any) -> Any:
        kind = type(node)
        if kind is dict:
            return {key: mapped(part) for key, part in node.items()}
        if kind is list:
            return [mapped(part) for part in node]
        if kind is tuple:
            return tuple([mapped(part) for part in node])
        branch = None if whole is not None and whole(node) else branch_of(node)
        if branch is None:
            return function(node)
        parts = branch.parts(node)
        others = [mapped(part) for part in parts]
        return node if all(map(is_, parts, others)) else branch.rebuilt(node, others)

    try:
        return mapped(batch)
    except RecursionError as error:
        raise BatchError(
            f"a batch of type {type(batch).__name__} holds itself, or is nested too deep: return "
            "one whose parts end in tensors and plain values"
        ) from error


def walk(batch: Any) -> Iterator[Any]:
    """The leaves of `batch` in order, each branch gone through once.

    After an object with a method `to` comes what it holds.
    """
    seen: dict[int, Any] = {}  # keeps what it has seen, or another object might get the same id
    todo = [iter((batch,))]
    while todo:
        for node in todo[-1]:
            branch = branch_of(node)
            if branch is None:
                yield node
            inside = _inside(node) if branch is None else branch.parts(node)
            if inside and id(node) not in seen:
                seen[id(node)] = node
                todo.append(iter(inside))
                break
        else:
            todo.pop()


def _inside(leaf: Any) -> Iterable[Any]:
    """What an object of the user's own holds that moves itself, such as a graph."""
    if isinstance(leaf, (Tensor, type)) or not callable(getattr(leaf, "to", None)):
        return ()
    return list(getattr(leaf, "__dict__", {}).values())


def dense_parts(tensor: Tensor) -> Sequence[Tensor]:
    """The tensors that hold the memory of a sparse or nested one; a dense one is its own."""
    if tensor.layout is sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in _COMPRESSED:
        outer, inner = _COMPRESSED[tensor.layout]
        return getattr(tensor, outer)(), getattr(tensor, inner)(), tensor.values()
    if hasattr(tensor, "__tensor_flatten__"):  # jagged tensors, and subclasses that wrap others
        names, _ = tensor.__tensor_flatten__()
        return [dense for name in names for dense in dense_parts(getattr(tensor, name))]
    return (tensor,)


def approximate_bytes(batch: Any) -> int:
    """What a batch holds in memory, about: exact for tensors, arrays and bytes."""
    return sum(map(_leaf_bytes, walk(batch)), 0 if branch_of(batch) is None else _OBJECT_BYTES)


def _leaf_bytes(leaf: Any) -> int:
    if isinstance(leaf, Tensor):
        return _OBJECT_BYTES + sum(dense.nbytes for dense in dense_parts(leaf))
    if isinstance(leaf, (np.ndarray, memoryview)):
        return _OBJECT_BYTES + leaf.nbytes
    return sys.getsizeof(leaf)


def _copied(node: Any) -> Any:
    """A copy that can be written to without `node` being changed."""
    clone = copy.copy(node)
    if not isinstance(node, (dict, list)):  # of a class of the user's: around one, most likely
        for name, value in getattr(clone, "__dict__", {}).items():
            if type(value) in (dict, list):
                clone.__dict__[name] = value.copy()
    return clone


def _rebuilt_mapping(node: Any, parts: Sequence[Any]) -> Any:
    mapped = dict(zip(node, parts, strict=True))
    if type(node) is dict:
        return mapped
    try:
        if isinstance(node, abc.MutableMapping):
            mapping = _copied(node)
            for key, value in mapped.items():
                mapping[key] = value
            return mapping
        return type(node)(mapped)
    except TypeError:  # no copy, no items to be set, or no such constructor
        return mapped


def _rebuilt_sequence(node: Any, parts: Sequence[Any]) -> Any:
    kind = type(node)
    if kind is list or kind is tuple:
        return kind(parts)
    try:
        if isinstance(node, abc.MutableSequence):
            sequence = _copied(node)
            for place, value in enumerate(parts):
                sequence[place] = value
            return sequence
        return kind(parts)
    except TypeError:  # no copy, or no such constructor
        return list(parts)


def _rebuilt_dataclass(node: Any, parts: Sequence[Any]) -> Any:
    clone = copy.copy(node)  # not built anew: `__init__` may check one sample's values
    for name, value in zip(_names(node), parts, strict=True):
        object.__setattr__(clone, name, value)
    return clone


def _names(node: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(node) if hasattr(node, field.name)]


def _places(node: Any) -> range:
    return range(len(node))


MAPPING = Branch(list, getitem, _rebuilt_mapping)
NAMED_TUPLE = Branch(_places, getitem, lambda node, parts: type(node)(*parts))
SEQUENCE = Branch(_places, getitem, _rebuilt_sequence)
DATACLASS = Branch(_names, getattr, _rebuilt_dataclass)

_LEAVES = (Tensor, np.ndarray, str, bytes, bytearray, memoryview, array, range)
#: the short way for the types that are asked for most
_KNOWN: dict[type, Branch | None] = {
    **dict.fromkeys((*_LEAVES, int, float, bool, type(None)), None),
    **{dict: MAPPING, list: SEQUENCE, tuple: SEQUENCE},
}
