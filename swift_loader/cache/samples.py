"""Samples as they lie in the store: the codec's bytes, numbers first and then the skeleton.

Whatever code of the user's sees a sample may change it or keep it. So samples are views over the
store only where nothing but our own collate looks at them; else they are copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from swift_loader.batch.arena import Arena, SlotTooSmall
from swift_loader.batch.codec import decode, encode

__all__ = ["Laid", "Layer", "rebuilt"]

_FIRST_BYTES = 1 << 18
Bytes = NDArray[np.uint8]


class Laid:
    """A sample's bytes, until the next one is laid."""

    __slots__ = ("numbers", "pieces", "skeleton")

    def __init__(self, numbers: Bytes, skeleton: bytes) -> None:
        self.pieces = (numbers, np.frombuffer(skeleton, np.uint8))
        self.numbers = len(numbers)
        self.skeleton = len(skeleton)


class Layer:
    """Lays samples, into memory of its own that is used again. For one thread."""

    def __init__(self) -> None:
        self._arena = Arena(np.empty(_FIRST_BYTES, np.uint8))

    def lay(self, sample: Any) -> Laid:
        """The sample's bytes. Raises what `encode` does for what can't leave this process."""
        while True:
            self._arena.reset()
            try:
                skeleton = encode(sample, self._arena)
            except SlotTooSmall as short:
                self._arena = Arena(np.empty(short.needed_bytes * 5 // 4, np.uint8))
                continue
            used = self._arena.used_bytes
            return Laid(self._arena.array_at(0, (used,), np.dtype(np.uint8)), skeleton)


def rebuilt(data: Bytes, numbers: int, *, copy: bool) -> Any:
    """The sample again: of its own memory with `copy`, else as views over `data`."""
    base = data[:numbers]
    return decode(data[numbers:].tobytes(), base.copy() if copy else base)
