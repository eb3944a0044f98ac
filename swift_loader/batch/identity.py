"""Classes that travel by value stay one class on both sides.

A class of `__main__`, or a local one, can't be found by name in a worker: it is rebuilt there. Its
instances come back in batches, and `isinstance` must hold in the training process. So such a class
gets a token when it is shipped; both sides keep `token <-> class`, and a batch names the token.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

__all__ = [
    *("class_by_token", "class_here", "class_of", "is_importable", "main_has", "main_is_shared"),
    *("number_here", "register", "staying_here", "token_of"),
]

_prefix = uuid4().hex
_class_of: dict[str, type] = {}
_token_of: dict[int, tuple[str, type]] = {}  # by id: a metaclass may have made classes unhashable


#: Global names of `__main__` that the other process has too, as it imports the script.
_of_main: ContextVar[Container[str]] = ContextVar("of_main", default=())


@contextmanager
def main_has(names: Container[str]) -> Iterator[None]:
    """While things are packed for a process that has these global names of `__main__` too."""
    token = _of_main.set(names)
    try:
        yield
    finally:
        _of_main.reset(token)


#: By number: classes that batches speak of which never leave this process.
_here: ContextVar[dict[int, type] | None] = ContextVar("here", default=None)


@contextmanager
def staying_here(classes: dict[int, type]) -> Iterator[None]:
    """While a batch becomes bytes and a batch again in one process: its classes stay themselves.

    `classes` keeps them for as long as such bytes may be read.
    """
    token = _here.set(classes)
    try:
        yield
    finally:
        _here.reset(token)


def number_here(kind: type) -> int | None:
    """What `class_here` takes for a class of a batch that stays here; None if batches leave."""
    classes = _here.get()
    if classes is None:
        return None
    classes[id(kind)] = kind
    return id(kind)


def class_here(number: int) -> type:
    """The class with this number."""
    classes = _here.get()
    assert classes is not None
    return classes[number]


class _All(Container[str]):
    def __contains__(self, name: object) -> bool:
        return True


def main_is_shared() -> None:
    """Whatever this process packs from now on is for one that runs the same `__main__`."""
    _of_main.set(_All())


def is_importable(obj: Any) -> bool:
    """Whether another process finds this class, function or type variable by its name."""
    module = getattr(obj, "__module__", None)
    if module is None:
        return False
    qualname = getattr(obj, "__qualname__", None) or obj.__name__  # type variables have no qualname
    if module in ("__main__", "__mp_main__") and qualname.split(".")[0] not in _of_main.get():
        return False
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found is obj


def register(kind: type, token: str | None = None) -> str:
    """Remember `kind` for the life of this process; under a fresh token unless one came with it."""
    if token is None:
        known = token_of(kind)
        if known is not None:
            return known
        token = f"{_prefix}:{len(_class_of)}"
    _class_of.setdefault(token, kind)  # the first is the true one, the next a copy that came back
    _token_of[id(kind)] = token, kind
    return token


def token_of(kind: type) -> str | None:
    """The token of a class that travelled by value, None for any other."""
    known = _token_of.get(id(kind))
    return None if known is None else known[0]


def class_of(token: str) -> type | None:
    """The class that this process knows by `token`."""
    return _class_of.get(token)


def class_by_token(token: str, module: str, qualname: str) -> type:
    """The class that this process knows by `token`, else the one of that name.

    Raises `AttributeError` where neither is known.
    """
    kind = _class_of.get(token)
    if kind is None:
        found: Any = importlib.import_module(module)
        for name in qualname.split("."):
            found = getattr(found, name)
        kind = _class_of[token] = found
    return kind
