"""Whether a stream, or the samples of a data set, are the same on every rank: a digest of them.

Only what is there is read: attributes, members, captured and global variables. What differs from
process to process by itself is left out: locks, open files, generators of random numbers, the
order of sets.
"""

from __future__ import annotations

import functools
import marshal
import os
import re
import warnings
from collections.abc import Iterator
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from swift_loader.worker.rank_signs import functions_of, is_known, names_of_code

__all__ = ["likeness_of", "likeness_of_samples"]

_MOST_OBJECTS = 50_000
_MANY = 1000  # of a longer list, members at equal distances
_MOST_BYTES = 1 << 24  # of an array; of a larger one, rows at equal distances
_ROWS = 64
_FEW = 8
_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_SHOWN = (range, slice, os.PathLike, re.Pattern, np.generic, np.dtype, torch.device, torch.dtype)
_OF_ONE_PROCESS = frozenset(
    (
        *("_io", "_random", "_thread", "_weakref", "asyncio", "concurrent", "ctypes", "io"),
        *("logging", "multiprocessing", "random", "select", "socket", "threading", "weakref"),
    )
)
_GENERATORS = frozenset(("Generator", "RandomState"))  # of numpy and torch
_CONTAINERS = (list, tuple, dict, set, frozenset, range, np.ndarray, torch.Tensor, os.PathLike)


def likeness_of(*things: Any) -> bytes:
    """The same on two ranks where `things` are. Of the user's code, runs ``__reduce__`` at most."""
    reader = _Reader()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # iterators of itertools warn where they are taken apart
        reader.read(things)
    return reader.digest()


def likeness_of_samples(dataset: Any) -> bytes:
    """The same on two ranks whose `dataset` holds the same samples; empty: nobody can tell.

    Of plain containers, Hugging Face's tables, and torch's data sets over these. What a class of
    the user's holds may differ by rank for other reasons.
    """
    parts = list(_parts_with_samples(dataset))
    return likeness_of(parts) if parts else b""


def _parts_with_samples(dataset: Any) -> Iterator[Any]:
    if isinstance(dataset, Subset):
        yield dataset.indices
        yield from _parts_with_samples(dataset.dataset)
    elif isinstance(dataset, TensorDataset):
        yield dataset.tensors
    elif isinstance(dataset, (ConcatDataset, StackDataset)):
        several = dataset.datasets
        for one in several.values() if isinstance(several, dict) else several:
            yield from _parts_with_samples(one)
    elif isinstance(dataset, (list, tuple, range, np.ndarray, torch.Tensor)):
        yield dataset
    elif type(dataset).__module__ == "datasets.arrow_dataset":
        rows = dataset.with_format("arrow")  # without transforms
        yield rows[:_FEW], rows[max(0, len(rows) - _FEW) :]


class _Reader:
    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._todo: list[Any] = []
        self._seen: dict[int, Any] = {}  # keeps what is made on the way: ids are not used twice

    def digest(self) -> bytes:
        return self._hash.digest()

    def read(self, thing: Any) -> None:
        self._todo = [thing]
        while self._todo and len(self._seen) < _MOST_OBJECTS:
            one = self._todo.pop()
            if type(one) in _PLAIN:
                self._say(repr(one))
            elif id(one) in self._seen:
                self._say("again")
            else:
                self._seen[id(one)] = one
                self._say(type(one).__qualname__)
                try:
                    self._visit(one)
                except Exception:  # noqa: BLE001 - it can't be looked at: its type stands for it
                    self._say("closed")

    def _say(self, text: str) -> None:
        self._say_bytes(text.encode(errors="backslashreplace"))

    def _say_bytes(self, data: Any) -> None:
        self._hash.update(len(data).to_bytes(8, "little"))
        self._hash.update(data)

    def _visit(self, one: Any) -> None:
        root = type(one).__module__.partition(".")[0]
        if isinstance(one, (list, tuple)):
            self._members(one)
        elif isinstance(one, (set, frozenset)):
            plain = set(map(type, one)) <= _PLAIN
            self._say(repr(sorted(map(repr, one))) if plain else str(len(one)))
        elif isinstance(one, dict):
            self._entries(one)
        elif isinstance(one, np.ndarray):
            self._array(one)
        elif isinstance(one, torch.Tensor):
            self._tensor(one)
        elif isinstance(one, _SHOWN):
            self._say(repr(one))
        elif isinstance(one, (bytearray, memoryview)):
            self._say_bytes(bytes(one))
        elif isinstance(one, ModuleType):
            self._say(one.__name__)
        elif isinstance(one, type):
            self._kind(one)
        elif isinstance(one, FunctionType):
            self._function(one)
        elif isinstance(one, (MethodType, BuiltinFunctionType)):
            self._say(one.__name__)
            self._todo += [one.__self__, getattr(one, "__func__", None)]
        elif isinstance(one, functools.partial):
            self._todo += [one.func, one.args, one.keywords]
        elif isinstance(one, GeneratorType):
            self._say(one.gi_code.co_qualname if hasattr(one.gi_code, "co_qualname") else "")
            self._todo.append(dict(one.gi_frame.f_locals) if one.gi_frame else None)
        elif root == "pyarrow":
            self._of_arrow(one)
        elif root not in _OF_ONE_PROCESS and type(one).__name__ not in _GENERATORS:
            self._object(one)

    def _members(self, some: Any) -> None:
        self._say(str(len(some)))
        if len(some) <= _MANY:
            self._todo += list(some)[::-1]
            return
        try:
            self._say_bytes(marshal.dumps(some, 0))  # of plain data, a hundred times as fast
        except ValueError:
            self._todo += some[:: len(some) // _MANY]

    def _entries(self, some: dict[Any, Any]) -> None:
        keys = sorted(some, key=repr) if set(map(type, some)) <= _PLAIN else list(some)
        for key in keys:
            self._todo += [some[key], key]

    def _array(self, array: Any) -> None:
        self._say(f"{array.dtype} {array.shape}")
        if array.dtype.hasobject:
            self._todo.append(array.tolist())
            return
        if array.nbytes > _MOST_BYTES and array.ndim:
            array = array[:: max(1, len(array) // _ROWS)]
        self._say_bytes(np.ascontiguousarray(array).reshape(-1)[:_MOST_BYTES].tobytes())

    def _tensor(self, tensor: torch.Tensor) -> None:
        self._say(f"{tensor.dtype} {tuple(tensor.shape)}")
        if tensor.device.type == "cpu" and tensor.layout is torch.strided:
            if tensor.nbytes > _MOST_BYTES:
                tensor = tensor[:: max(1, len(tensor) // _ROWS)]
            bits = tensor.detach().contiguous().reshape(-1)[:_MOST_BYTES]
            self._say_bytes(bits.view(torch.uint8).numpy().tobytes())

    def _of_arrow(self, one: Any) -> None:
        """Tables may be files of gigabytes: some rows stand for all."""
        if hasattr(one, "num_rows"):
            self._say(f"{one.num_rows} {one.schema}")
            ends = one.slice(0, _FEW), one.slice(max(0, one.num_rows - _FEW))
            self._todo += [part.to_pydict() for part in ends]
        elif hasattr(one, "to_pylist"):
            self._say(str(len(one)))
            self._todo += [one[:_FEW].to_pylist(), one[-_FEW:].to_pylist()]

    def _function(self, function: FunctionType) -> None:
        self._say(function.__qualname__)
        self._todo += [function.__defaults__, function.__kwdefaults__]
        for cell in function.__closure__ or ():
            try:
                self._todo.append(cell.cell_contents)
            except ValueError:  # it is empty
                self._say("empty")
        for one in functions_of(function):
            self._code(one)

    def _code(self, function: FunctionType) -> None:
        """What the user's code finds in its global variables."""
        if id(function.__code__) in self._seen:
            return
        self._seen[id(function.__code__)] = function.__code__
        constants = [one for one in function.__code__.co_consts if type(one) in _PLAIN]
        self._say(repr(constants))
        for name in sorted(names_of_code(function.__code__)):
            value = function.__globals__.get(name)
            if type(value) in _PLAIN or isinstance(value, _CONTAINERS):
                self._todo += [value, name]

    def _kind(self, kind: type) -> None:
        self._say(kind.__qualname__)
        for one in kind.__mro__:
            if is_known(one.__module__) or (id(one) in self._seen and one is not kind):
                continue
            self._seen[id(one)] = one
            for name, value in vars(one).items():
                if not name.startswith("__") and (
                    type(value) in _PLAIN or isinstance(value, _CONTAINERS)
                ):
                    self._todo += [value, name]
        for function in functions_of(kind):
            self._code(function)

    def _object(self, one: Any) -> None:
        kind = type(one)
        if any(base.__module__.startswith("fsspec.") for base in kind.__mro__):
            return  # a file system holds what names its process
        attributes = getattr(one, "__dict__", None)
        if not is_known(kind.__module__):
            self._todo.append(kind)
        elif isinstance(attributes, dict):
            attributes = {name: attributes[name] for name in attributes if "cache" not in name}
        slots = _slots_of(one)
        if isinstance(attributes, dict) or slots:
            self._todo += [dict(attributes or {}), slots]
        elif getattr(one, "nbytes", 0) <= _MOST_BYTES:
            parts = one.__reduce_ex__(4)
            if isinstance(parts, tuple):
                self._todo += [list(part) if hasattr(part, "__next__") else part for part in parts]
            else:
                self._say(str(parts))


def _slots_of(one: Any) -> dict[str, Any]:
    names = [
        name
        for kind in type(one).__mro__
        for name in (kind.__dict__.get("__slots__") or ())
        if isinstance(name, str) and name not in ("__dict__", "__weakref__")
    ]
    return {name: getattr(one, name) for name in names if hasattr(one, name)}
