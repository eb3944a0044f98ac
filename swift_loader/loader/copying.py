"""A loader that is pickled or copied: its arguments travel, and build another one, not started."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from multiprocessing.context import get_spawning_popen
from typing import Any, TypeVar

from swift_loader.batch.shipping import pack, unpack

__all__ = ["packed", "rebuilt", "shown"]

T = TypeVar("T")


def packed(parts: Mapping[str, Any]) -> bytes:
    """What workers are given too, as they are given it: classes of `__main__` go by value."""
    is_for_a_child = get_spawning_popen() is not None
    return bytes(pack(parts, elsewhere=not is_for_a_child))


def rebuilt(kind: type[T], given: Mapping[str, Any], parts: bytes) -> T:
    """A loader of these arguments, and of what `packed` gave."""
    return kind(**{**given, **unpack(memoryview(bytearray(parts)))})


def shown(value: Any) -> str:
    """An argument in a `repr`: the name of a function, the beginning of what is long."""
    return getattr(value, "__qualname__", None) or reprlib.repr(value)
