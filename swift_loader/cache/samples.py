"""Samples as they lie in the store: the codec's bytes, numbers first and then the skeleton.

Whatever code of the user's sees a sample may change it or keep it. So samples are views over the
store only where nothing but our own collate looks at them; else they are copies.

The few ints and floats of a sample that is plain else (an image and its label, say) go among the
numbers too. So all samples of such a data set have one skeleton, which is read once: see
`swift_loader.batch.patterns`.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from swift_loader.batch import rebuild
from swift_loader.batch.arena import Arena, SlotTooSmall, aligned_bytes
from swift_loader.batch.codec import decode, encode
from swift_loader.batch.reduce import BASE
from swift_loader.cache.alike import Alike

__all__ = ["Laid", "Layer", "rebuilt"]

_FIRST_BYTES = 1 << 18
_LARGE_BYTES = 1 << 23
_DEEPEST = 8
_MOST_NUMBERS = 16
_CELL_BYTES = 8
Bytes = NDArray[np.uint8]


class _Number:
    """Stands for an int or a float while its sample is encoded."""

    __slots__ = ("kind", "offset", "value")

    def __init__(self, kind: str, offset: int, value: float) -> None:
        self.kind, self.offset, self.value = kind, offset, value

    def __reduce__(self) -> Any:
        return rebuild.number, (BASE, self.kind, self.offset)


class _NotPlain(Exception):
    """The sample holds something that has a skeleton of its own anyway, or no number."""


def _without_numbers(part: Any, numbers: list[_Number], depth_left: int) -> Any:
    """`part` with a place for each number, which is added to `numbers`. Raises `_NotPlain`."""
    kind = type(part)
    if kind is int or kind is float:
        if len(numbers) == _MOST_NUMBERS or (kind is int and not -(2**63) <= part < 2**63):
            raise _NotPlain
        numbers.append(_Number("<q" if kind is int else "<d", len(numbers) * _CELL_BYTES, part))
        return numbers[-1]
    if kind in _UNCHANGED:
        return part
    if not depth_left or (kind is not tuple and kind is not dict):
        raise _NotPlain
    if kind is tuple:
        return tuple([_without_numbers(each, numbers, depth_left - 1) for each in part])
    return {key: _without_numbers(each, numbers, depth_left - 1) for key, each in part.items()}


_UNCHANGED = frozenset((Tensor, np.ndarray, bool, type(None)))


class Laid:
    """A sample's bytes, until `Layer.clear`: buffers, one after the other."""

    __slots__ = ("nbytes", "numbers", "pieces", "skeleton")

    def __init__(self, pieces: list[Any], numbers: int, skeleton: bytes) -> None:
        self.pieces = [*pieces, skeleton]
        self.numbers = numbers  # bytes, as are the next
        self.skeleton = len(skeleton)
        self.nbytes = numbers + len(skeleton)


class Layer:
    """Lays samples one after the other, into memory of its own. For one thread."""

    def __init__(self) -> None:
        self._memory: Bytes = np.empty(_FIRST_BYTES, np.uint8)
        self._end = 0
        self._last = b""  # skeleton
        self._alike: Alike | None = None

    def clear(self) -> None:
        """Nobody looks at what was laid any more: its memory is used again."""
        self._end = 0

    def lay(self, sample: Any) -> Laid:
        """The sample's bytes. Raises what `encode` does for what can't leave this process.

        Nobody may change the sample as long as they are looked at.
        """
        alike = self._alike
        if alike is not None:
            pieces = alike.pieces(sample, self._memory[self._end :])
            if pieces is not None:
                self._end += alike.numbers
                return Laid(pieces, alike.numbers, alike.skeleton)
        laid, skeleton = self._encoded(sample)
        if skeleton != self._last:
            self._last = skeleton
        elif alike is None or alike.skeleton != skeleton:
            self._alike = Alike(skeleton, len(laid))
        return Laid([laid], len(laid), skeleton)

    def _encoded(self, sample: Any) -> tuple[Bytes, bytes]:
        numbers: list[_Number] = []
        try:
            sample = _without_numbers(sample, numbers, _DEEPEST)
        except _NotPlain:
            numbers.clear()
        cells_bytes = _CELL_BYTES * len(numbers)
        while True:
            rest = self._memory[self._end :]
            arena = Arena(rest)
            arena.reserve(cells_bytes)
            try:
                skeleton = encode(sample, arena)
            except SlotTooSmall as short:  # what was laid keeps its memory
                nbytes = short.needed_bytes + aligned_bytes(cells_bytes)
                size = max(2 * min(len(self._memory), _LARGE_BYTES), nbytes * 5 // 4)
                self._memory, self._end = np.empty(size, np.uint8), 0
                continue
            for number in numbers:
                struct.pack_into(number.kind, rest.data, number.offset, number.value)
            self._end += arena.used_bytes
            return rest[: arena.used_bytes], skeleton


def rebuilt(data: Bytes, numbers: int, *, copy: bool) -> Any:
    """The sample again: of its own memory with `copy`, else as views over `data`."""
    base = data[:numbers]
    return decode(data[numbers:].tobytes(), base.copy() if copy else base)
