"""Classes that travel by value stay one class on both sides.

A class of `__main__`, or a local one, can't be found by name in a worker: it is rebuilt there. Its
instances come back in batches, and `isinstance` must hold in the training process. So such a class
gets a token when it is shipped; both sides keep `token <-> class`, and a batch names the token.
"""

from __future__ import annotations

import sys
from typing import Any
from uuid import uuid4

__all__ = ["class_by_token", "register", "token_of"]

_prefix = uuid4().hex
_class_of: dict[str, type] = {}
_token_of: dict[int, str] = {}  # by id: a metaclass may have made classes unhashable


def register(kind: type, token: str | None = None) -> str:
    """Remember `kind` for the life of this process; a fresh token unless one came with it."""
    known = _token_of.get(id(kind))
    if known is not None and token is None:
        return known
    token = token or f"{_prefix}:{len(_class_of)}"
    _class_of[token] = kind
    _token_of[id(kind)] = token
    return token


def token_of(kind: type) -> str | None:
    """The token of a class that travelled by value, None for any other."""
    return _token_of.get(id(kind))


def class_by_token(token: str, module: str, qualname: str) -> type:
    """The class that this process knows by `token`, else the one of that name.

    Raises:
        AttributeError, KeyError: neither is known here.
    """
    kind = _class_of.get(token)
    if kind is None:
        found: Any = sys.modules[module]
        for name in qualname.split("."):
            found = getattr(found, name)
        kind = _class_of[token] = found
    return kind
