"""A fingerprint of a data set: the same for the same class and arguments, in any process.

It goes through what it is given as pickle would, but its result doesn't depend on what a process
draws by chance, such as the order of a set. Of a class and a function it takes the code, and of a
class what its attributes hold, so a ``__getitem__`` that was changed has another fingerprint.
Functions elsewhere that it calls, and files that it reads, are not looked at: a `key` of the user's
tells versions of these apart.
"""

from __future__ import annotations

import sys
from functools import cached_property
from hashlib import blake2b
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

__all__ = ["fingerprint"]

_DEEPEST = 200
_OF_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_PLAIN = (type(None), bool, int, float, complex, str)


def fingerprint(*parts: Any) -> str:
    """32 hexadecimal digits. Raises `TypeError` for what has none: a lock, an open file."""
    walk = _Walk()
    walk.version()
    for part in parts:
        walk.of(part)
    return walk.digest()


class _Walk:
    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._seen: dict[int, int] = {}  # what is under way, or was looked at
        self._kept: list[Any] = []
        self._depth = 0

    def digest(self) -> str:
        return self._hash.hexdigest()

    def version(self) -> None:
        """Code differs between versions of Python."""
        self._say("python", f"{sys.version_info[:2]}")

    def _say(self, kind: str, data: str | bytes = b"") -> None:
        data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        self._hash.update(f"{kind} {len(data)} ".encode())
        self._hash.update(data)

    def of(self, value: Any) -> None:
        if type(value) in _PLAIN:
            self._say(type(value).__name__, repr(value))
            return
        if isinstance(value, (bytes, bytearray)):
            self._say("bytes", bytes(value))
            return
        before = self._seen.get(id(value))
        if before is not None:
            self._say("again", str(before))
            return
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)  # or another object may get its number
        self._depth += 1
        if self._depth > _DEEPEST:
            raise TypeError("the data set is too deep to tell what it is")
        try:
            self._large(value)
        finally:
            self._depth -= 1

    def _large(self, value: Any) -> None:
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self._say("array", f"{value.dtype.str} {value.shape}")
            self._hash.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
            self._say("tensor", f"{value.dtype} {tuple(value.shape)}")
            flat = value.detach().cpu().contiguous().reshape(-1)
            if flat.numel():
                self._hash.update(flat.view(torch.uint8).numpy().data)
        elif isinstance(value, (list, tuple)):
            self._say(f"{type(value).__qualname__} {len(value)}")
            for each in value:
                self.of(each)
        elif type(value) is dict:
            self._say(f"dict {len(value)}")
            for key, each in value.items():
                self.of(key)
                self.of(each)
        elif isinstance(value, (set, frozenset)):
            self._say("set", "".join(sorted(fingerprint(each) for each in value)))
        elif isinstance(value, PurePath):
            self._say("path", str(value))
        elif isinstance(value, ModuleType):
            self._say("module", value.__name__)
        elif issubclass(type(value), type):  # `list[int]` is none, whatever Python 3.10 says
            self._class(value)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, CodeType):
            self._code(value)
        elif isinstance(value, MethodType):
            self._say("method", value.__name__)
            self.of(value.__self__)
        elif isinstance(value, BuiltinFunctionType):
            self._say("builtin", f"{value.__module__}.{value.__qualname__}")
        else:
            self._object(value)

    def _class(self, kind: type) -> None:
        self._say("class", f"{kind.__module__}.{kind.__qualname__}")
        if not kind.__flags__ & _OF_PYTHON:
            return  # its version is Python's, or its library's
        for name, value in sorted(vars(kind).items()):
            value = _inside(value)
            if isinstance(value, FunctionType):
                self._say("has", name)
                self._function(value)
            elif not (name.startswith("__") and name.endswith("__")):
                self._say("has", name)
                try:
                    self.of(value)
                except TypeError:  # a lock of the class's, say: no argument, so it is no hindrance
                    self._say("something", type(value).__qualname__)
        for base in kind.__bases__:
            if base is not object:
                self.of(base)

    def _function(self, function: FunctionType) -> None:
        self._say("function", f"{function.__module__}.{function.__qualname__}")
        self._code(function.__code__)
        self.of(function.__defaults__)
        self.of(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                self.of(cell.cell_contents)
            except ValueError:  # empty
                self._say("empty")

    def _code(self, code: CodeType) -> None:
        self._say("code", code.co_code)
        self.of(code.co_names)
        for value in code.co_consts:
            if isinstance(value, CodeType):
                self._code(value)
            else:
                self.of(value)

    def _object(self, value: Any) -> None:
        self._say("object", f"{type(value).__module__}.{type(value).__qualname__}")
        reduced = value.__reduce_ex__(4)
        if isinstance(reduced, str):
            self._say("global", reduced)
            return
        made_by, arguments, *rest = reduced
        if isinstance(made_by, type) or made_by.__module__ != "copyreg":
            self.of(made_by)
        self.of(arguments)
        for part in rest:
            if hasattr(part, "__next__"):
                part = list(part)
            self.of(part)


def _inside(value: Any) -> Any:
    """The function inside of a method, a property, or what wraps one."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, cached_property):
        return value.func
    if isinstance(value, FunctionType):
        return value  # what it may wrap is in its closure
    return vars(value)["__wrapped__"] if _wraps(value) else value


def _wraps(value: Any) -> bool:
    """Whether it is a function with something around it, as `functools.lru_cache` makes it."""
    return "__wrapped__" in getattr(value, "__dict__", ())
