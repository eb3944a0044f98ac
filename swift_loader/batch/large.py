"""Large `bytes` among a data set's arguments: one copy for all workers of a machine.

An array can be a view over memory that processes share; `bytes` own theirs. So the process that
workers are forked from makes the `bytes` before it forks, and a worker finds them: a fork shares
every page that nobody writes to. Elsewhere (Ray, the training process) they are made when unpacked.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Large", "as_bytes", "hold", "holds", "large_as_arrays", "let_go"]

_LARGE_BYTES = 1 << 20

_held: tuple[bytes, ...] = ()
_of: Hashable = None  # the payload that they belong to


class Large:
    """`bytes` on their way: an array, which lies behind the pickle."""

    def __init__(self, value: bytes, index: int) -> None:
        self.array: npt.NDArray[np.uint8] = np.frombuffer(value, np.uint8)
        self._index = index

    def __reduce__(self) -> Any:
        return as_bytes, (self._index, self.array)


def large_as_arrays(arguments: dict[str, Any]) -> tuple[dict[str, Any], list[Large]]:
    """The same arguments, to be pickled; and those of them that are large `bytes`."""
    found: list[Large] = []
    changed = dict(arguments)
    for name, value in arguments.items():
        if type(value) is bytes and len(value) >= _LARGE_BYTES:
            changed[name] = Large(value, len(found))
            found.append(changed[name])
    return changed, found


def as_bytes(index: int, array: npt.NDArray[np.uint8]) -> bytes:
    """Number `index` of the payload, whose bytes `array` shows."""
    return _held[index] if index < len(_held) else array.tobytes()


def holds(payload: Hashable) -> bool:
    """Whether this process has the `bytes` of `payload`."""
    return _of == payload


def hold(payload: Hashable, pieces: Sequence[npt.NDArray[np.uint8]]) -> None:
    """Make the `bytes` of `payload`, for workers that are forked from now on to unpack it.

    Those of another one are let go. Where there is no memory for them, each worker tries itself.
    """
    global _held, _of
    _held, _of = (), payload
    try:
        _held = tuple(piece.tobytes() for piece in pieces)
    except MemoryError:
        _held = ()


def let_go() -> None:
    """Hold none."""
    hold(None, ())
