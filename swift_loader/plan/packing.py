"""Sequences of one length, made of documents: which pieces make sequence `i`. Pure.

Everything follows from the documents' lengths. What is kept of them beside the array itself is a
sum for each block of `_BLOCK` documents; a sequence is found by a search among these sums, and a
look at the blocks that it touches. So the array may be a memory map of 10^8 lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .keys import key64
from .shuffle import bijection

__all__ = ["Lengths", "ManyPieces", "Packing", "Pieces", "SplitPacking"]

_BLOCK = 1024
_BLOCKS_AT_ONCE = 4096
_ORDER, _WITHIN = 21, 22  # purposes of keys


@dataclass(frozen=True)
class Pieces:
    """What a sequence is made of, in order: tokens ``[start, stop)`` of each document.

    Three int64 arrays of one shape, ``(number of pieces,)``. What a separator adds to a document
    are its last tokens.
    """

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    @classmethod
    def joined(cls, found: Sequence[Pieces]) -> Pieces:
        """One after the other; at least one."""
        if len(found) == 1:
            return found[0]
        return cls(
            np.concatenate([each.documents for each in found]),
            np.concatenate([each.starts for each in found]),
            np.concatenate([each.stops for each in found]),
        )


class ManyPieces(NamedTuple):
    """The pieces of several sequences, one after the other, and how many each has (int64)."""

    pieces: Pieces
    counts: NDArray[np.int64]

    @classmethod
    def joined(cls, found: Sequence[Pieces]) -> ManyPieces:
        """Of the pieces of each, at least one."""
        counts = np.array([len(each.documents) for each in found])
        return cls(Pieces.joined(found), counts)


class Packing(Protocol):
    """A way to make sequences of documents."""

    @property
    def nb_sequences(self) -> int:
        """All that there are, the same in every epoch."""

    def pieces(self, sequence: int, order: int | None = None) -> Pieces:
        """Those of one sequence. `order`: a 64-bit key of an order of the documents."""

    def pieces_of(self, sequences: Sequence[int], order: int | None = None) -> ManyPieces:
        """Those of several sequences."""


class Lengths:
    """The lengths of documents, in tokens, with what a separator adds.

    Parameters
    ----------
    lengths:
        One integer a document, none negative, of shape ``(documents,)``.
    separator:
        Tokens that follow each document that has any.

    Raises
    ------
    ValueError
        A length is negative.
    """

    def __init__(self, lengths: NDArray[np.integer], separator: int = 0) -> None:
        self.array = lengths
        self.separator = separator

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, documents: slice | NDArray[np.int64]) -> NDArray[np.int64]:
        """Of a few documents: int64."""
        lengths = self.array[documents].astype(np.int64)
        if self.separator:
            lengths[lengths > 0] += self.separator
        return lengths

    def sums(self, unit: int = 1) -> NDArray[np.int64]:
        """Of each block of `_BLOCK` documents: how many whole units of so many tokens it has."""
        step = _BLOCK * _BLOCKS_AT_ONCE
        sums = np.empty(-(-len(self) // _BLOCK), np.int64)
        for start in range(0, len(self), step):
            lengths = self[start : start + step]
            if lengths.min(initial=0) < 0:
                worst = start + int(lengths.argmin())
                raise ValueError(f"document {worst} has the length {self.array[worst]}")
            if unit != 1:
                lengths //= unit
            starts = np.arange(0, len(lengths), _BLOCK)
            first = start // _BLOCK
            sums[first : first + len(starts)] = np.add.reduceat(lengths, starts)
        return sums


class SplitPacking:
    """All documents one after the other, cut every `length` tokens; only the last is shorter."""

    def __init__(self, lengths: Lengths, length: int) -> None:
        self._lengths = lengths
        self._length = length
        self._sums = lengths.sums()
        self._total = int(self._sums.sum())
        self._ends = np.cumsum(self._sums)
        self._ordered = lru_cache(maxsize=2)(self._order_of)

    @property
    def nb_sequences(self) -> int:
        return -(-self._total // self._length)

    def pieces(self, sequence: int, order: int | None = None) -> Pieces:
        first = sequence * self._length
        last = min(first + self._length, self._total)
        blocks, ends = (None, self._ends) if order is None else self._ordered(order)
        place = int(np.searchsorted(ends, first, "right"))
        found = []
        while first < last:
            block = place if blocks is None else int(blocks[place])
            end = int(ends[place])
            found.append(self._in_block(block, end - int(self._sums[block]), first, last, order))
            first, place = max(first, min(end, last)), place + 1
        return Pieces.joined(found)

    def pieces_of(self, sequences: Sequence[int], order: int | None = None) -> ManyPieces:
        return ManyPieces.joined([self.pieces(sequence, order) for sequence in sequences])

    def _in_block(
        self, block: int, before: int, first: int, last: int, order: int | None
    ) -> Pieces:
        """The pieces between two tokens of all, in a block with `before` tokens before it."""
        start = block * _BLOCK
        documents = np.arange(start, min(start + _BLOCK, len(self._lengths)), dtype=np.int64)
        if order is not None:
            places = (documents - start).astype(np.uint64)
            key = key64(_WITHIN, order, block)
            documents = start + bijection(places, len(places), key).astype(np.int64)
        lengths = self._lengths[documents] if order is not None else self._lengths[
            start : start + _BLOCK
        ]  # fmt: skip
        stops = before + np.cumsum(lengths)
        low = int(np.searchsorted(stops, first, "right"))
        high = int(np.searchsorted(stops, last, "left")) + 1
        documents, lengths, stops = documents[low:high], lengths[low:high], stops[low:high]
        begins = stops - lengths
        starts, ends = np.maximum(first - begins, 0), np.minimum(last - begins, lengths)
        some = ends > starts  # documents without a token are in no sequence
        if some.all():
            return Pieces(documents, starts, ends)
        return Pieces(documents[some], starts[some], ends[some])

    def _order_of(self, order: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The blocks in this order, and where each ends."""
        count = len(self._sums)
        places = np.arange(count, dtype=np.uint64)
        blocks = bijection(places, count, key64(_ORDER, order)).astype(np.int64)
        return blocks, np.cumsum(self._sums[blocks])

    def __reduce__(self) -> tuple[type[SplitPacking], tuple[Lengths, int]]:
        return type(self), (self._lengths, self._length)
