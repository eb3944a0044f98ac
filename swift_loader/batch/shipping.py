"""Carries the user's objects to worker processes: once, in one piece of memory for all of them.

What can be imported goes by reference. What can't (classes and functions of `__main__`, lambdas,
local classes) goes by value through `dill`: with the globals that it uses and no others. Arrays and
tensors lie behind the pickles, and are views over the region when unpacked, so a worker that maps
it privately shares every page that it does not write to. A `numpy.memmap` travels as its file name.

    header      three int64: bytes of the index, of the code, of the skeleton
    index       pickle: the tables of out-of-band buffers of code and skeleton
    code        dill: what goes by value, and the classes among it with their tokens
    skeleton    C pickle of the parts, which refers to `code` by number
    data        the buffers, each aligned

Two pickles, because dill is written in Python: a million dicts take it a minute.
"""

from __future__ import annotations

import importlib
import io
import mmap
import pickle
import struct
import sys
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from operator import getitem
from threading import Lock, RLock
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

import dill
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swift_loader.batch import byvalue, memmaps
from swift_loader.batch.arena import aligned_bytes, carrier_of
from swift_loader.batch.blame import blame
from swift_loader.batch.identity import is_importable, register
from swift_loader.batch.rebuild import given_buffers
from swift_loader.batch.reduce import BASE, Reducer
from swift_loader.errors import BatchError, ShippingError

__all__ = ["Payload", "pack", "unpack"]

_HEADER = struct.Struct("<3q")
_CONTAINERS = (dict, list, set, frozenset, tuple)
_MANY = 1000  # elements; a container of so many isn't left to dill if the C pickler can do it
_CACHED = type(lru_cache(len))
#: what dill would carry, but as something else than what the user means
_BOUND_HERE = (
    type(Lock()),
    type(RLock()),
    GeneratorType,
    io.FileIO,
    io.BufferedReader,
    io.BufferedWriter,
    io.BufferedRandom,
    io.TextIOWrapper,
)


class Payload:
    """Packed objects: `nbytes` in all, laid into a region by `write`."""

    def __init__(self, pickles: bytes, sources: list[tuple[int, npt.NDArray[np.uint8]]]) -> None:
        self._pickles = pickles
        self._sources = sources
        end = max((offset + source.nbytes for offset, source in sources), default=0)
        self._data_start = aligned_bytes(len(pickles))
        self.nbytes = self._data_start + end

    def write(self, region: memoryview | mmap.mmap) -> None:
        """Copy everything into `region`: writable, of at least `nbytes`, zeroed or not."""
        target = np.frombuffer(region, np.uint8)
        target[: len(self._pickles)] = np.frombuffer(self._pickles, np.uint8)
        data = target[self._data_start :]
        for offset, source in self._sources:
            data[offset : offset + source.nbytes] = source


def pack(parts: Mapping[str, Any]) -> Payload:
    """Pickle `parts`; their arrays stay where they are until the payload is written.

    Raises:
        ShippingError: something can't travel. Names it as `part['key'].attribute`, with the fix.
    """
    try:
        return _pack(dict(parts))
    except Exception as error:
        raise ShippingError(blame(parts, _failure, error)) from error


def unpack(region: memoryview | mmap.mmap) -> dict[str, Any]:
    """What `pack` was given. Arrays and tensors are views over `region`, and keep it.

    They are writable if it is. Raises whatever importing or unpickling the user's things raises.
    """
    whole = np.frombuffer(region, np.uint8)
    texts = []
    start = _HEADER.size
    for size in _HEADER.unpack_from(whole.data):
        texts.append(whole[start : start + size].data)
        start += size
    base = whole[aligned_bytes(start) :]
    index, code, skeleton = texts
    code_table, skeleton_table = pickle.loads(index)
    reader = _Unpickler(io.BytesIO(code), buffers=given_buffers(base, code_table))
    values = reader.load()
    for token, kind in reader.load():
        register(kind, token)
    buffers = chain([values], given_buffers(base, skeleton_table))
    _, parts = _Unpickler(io.BytesIO(skeleton), buffers=buffers).load()
    unpacked: dict[str, Any] = values[0] if parts is None else parts
    return unpacked


def _pack(parts: dict[str, Any]) -> Payload:
    data = _Data()
    try:
        by_value: list[Any] = []
        skeleton, skeleton_table = _dump_plain(data, parts, by_value)
    except (BatchError, RecursionError):
        raise
    except Exception:  # noqa: BLE001 (dill may do it; what it says is what counts then)
        by_value = [parts]
        skeleton, skeleton_table = _dump_plain(data, None, [])
    dilled = _Gatherer(data, None)
    file = io.BytesIO()
    given: list[pickle.PickleBuffer] = []
    pickler = dill.Pickler(file, 5, recurse=True, buffer_callback=given.append)
    pickler.reducer_override = dilled.reduce
    pickler.dump(by_value)
    kinds = [obj for _, obj in pickler.memo.values() if isinstance(obj, type)]
    pickler.dump([(register(kind), kind) for kind in kinds if not is_importable(kind)])
    index = pickle.dumps((dilled.lay_buffers(given), skeleton_table))
    texts = index, file.getvalue(), skeleton
    return Payload(_HEADER.pack(*map(len, texts)) + b"".join(texts), data.sources)


def _dump_plain(data: _Data, obj: Any, by_value: list[Any]) -> tuple[bytes, list[int]]:
    """The pickle of `obj`, and the table of its buffers; adds to `by_value` what is for dill."""
    gatherer = _Gatherer(data, by_value)
    file = io.BytesIO()
    given: list[pickle.PickleBuffer] = []
    pickler = _Plain(file, 5, buffer_callback=given.append)
    pickler.reducer_override = gatherer.reduce  # type: ignore[method-assign]
    pickler.dump((gatherer.values, obj))
    return file.getvalue(), gatherer.lay_buffers(given[1:])


def _failure(part: Any) -> Exception | None:
    """Why one thing alone can't travel, None if it can."""
    try:
        _pack({"it": part})
    except Exception as error:  # noqa: BLE001 (it is what was asked for)
        return error
    return None


class _Plain(pickle.Pickler):
    """The C pickler; a subclass, so that it takes an attribute."""


class _Unpickler(pickle.Unpickler):
    """Reads what either of them wrote, at the speed of C."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (
            "__builtin__",
            "__main__",
        ):  # dill's word for the main module's globals
            return importlib.import_module("__main__").__dict__
        return super().find_class(module, name)


def _load_apart(base: npt.NDArray[np.uint8], table: list[int], text: bytes) -> Any:
    return pickle.loads(text, buffers=chain([None], given_buffers(base, table)))[1]


class _Values:
    """Stands for the list of what went by value, while a skeleton is pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return itself, (pickle.PickleBuffer(bytearray(1)),)


def itself(given: Any) -> Any:
    """What came in for an out-of-band buffer."""
    return given


class _Data:
    """The buffers of a payload: each once, although two pickles may name it."""

    def __init__(self) -> None:
        self.sources: list[tuple[int, npt.NDArray[np.uint8]]] = []
        self._offset_of: dict[tuple[int, int], int] = {}
        self._end = 0

    def add(self, array: npt.NDArray[Any]) -> int:
        """The offset that a C-contiguous array will have. It is kept until then."""
        if array.nbytes == 0:
            return 0
        place = array.ctypes.data, array.nbytes
        offset = self._offset_of.get(place)
        if offset is None:
            self._offset_of[place] = offset = self._end
            self.sources.append((offset, array.reshape(-1).view(np.uint8)))
            self._end += aligned_bytes(array.nbytes)
        return offset


class _Gatherer(Reducer):
    """Notes where buffers will lie, and sorts out what goes by value.

    Args:
        data: the buffers of the payload.
        by_value: what dill is to pickle, to be added to; None while dill does.
    """

    def __init__(self, data: _Data, by_value: list[Any] | None) -> None:
        self.values = _Values()
        self._by_value = by_value
        self._data = data

    def reduce(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is FunctionType or kind is _CACHED or issubclass(kind, type):
            if is_importable(obj):
                return NotImplemented
            if self._by_value is not None:
                self._by_value.append(obj)  # asked once for each: a pickler remembers
                return getitem, (self.values, len(self._by_value) - 1)
        if self._by_value is None and kind in _CONTAINERS and len(obj) >= _MANY:
            return self._apart(obj)
        if isinstance(obj, np.ndarray):
            by_name = memmaps.reduce(obj)
            return super().reduce(obj) if by_name is None else by_name
        if isinstance(obj, ModuleType) and sys.modules.get(obj.__name__) is obj:
            return importlib.import_module, (obj.__name__,)
        if isinstance(obj, _BOUND_HERE):
            raise ShippingError(f"{kind.__module__}.{kind.__qualname__} belongs to one process")
        reduced = byvalue.reduce(obj)
        return super().reduce(obj) if reduced is None else reduced

    def _apart(self, container: Any) -> Any:
        """A large container of plain things in a pickle of its own: dill is slow at those."""
        by_value: list[Any] = []
        try:
            text, table = _dump_plain(self._data, container, by_value)
        except Exception:  # noqa: BLE001 (dill goes into it, and says what is wrong)
            return NotImplemented
        return NotImplemented if by_value else (_load_apart, (BASE, table, text))

    def lay_array(self, array: npt.NDArray[Any]) -> int:
        return self._data.add(np.ascontiguousarray(array))

    def lay_tensor(self, tensor: Tensor) -> int:
        bits: torch.dtype = getattr(torch, carrier_of(tensor.dtype).name)
        return self._data.add(tensor.contiguous().view(bits).numpy())
