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
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from .keys import key64
from .shuffle import bijection

__all__ = ["Lengths", "ManyPieces", "Packing", "Pieces", "SplitPacking", "ranges"]

_BLOCK = 1024
_BLOCKS_AT_ONCE = 4096
_ORDER, _WITHIN = 21, 22  # purposes of keys
_PLACES = np.arange(_BLOCK, dtype=np.uint64)


def ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """``counts[i]`` whole numbers from ``starts[i]`` on, one range after the other: int64."""
    ends = np.cumsum(counts)
    numbers = np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64)
    numbers += np.repeat(starts - (ends - counts), counts)
    return numbers


@dataclass(frozen=True)
class Pieces:
    """What a sequence is made of, in order: tokens ``[start, stop)`` of each document.

    Three int64 arrays of one shape, ``(number of pieces,)``. What a separator adds to a document
    are its last tokens.
    """

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    def with_others(self, others: Pieces, at: NDArray[np.int64]) -> Pieces:
        """With those of `others` put between, so that they stand at these places."""
        if not len(at):
            return self
        nb_pieces = len(self.documents) + len(at)
        is_own = np.ones(nb_pieces, np.bool_)
        is_own[at] = False
        columns = []
        for own, other in (
            (self.documents, others.documents),
            (self.starts, others.starts),
            (self.stops, others.stops),
        ):
            column = np.empty(nb_pieces, np.int64)
            column[is_own] = own
            column[at] = other
            columns.append(column)
        return Pieces(*columns)


class ManyPieces(NamedTuple):
    """The pieces of several sequences, one after the other, and how many each has (int64)."""

    pieces: Pieces
    counts: NDArray[np.int64]


class Packing(Protocol):
    """A way to make sequences of documents."""

    @property
    def nb_sequences(self) -> int:
        """All that there are, the same in every epoch."""

    def pieces_of(self, sequences: Sequence[int], order: int | None = None) -> ManyPieces:
        """Those of several sequences. `order`: a 64-bit key of an order of the documents."""


class Lengths:
    """The lengths of documents, in tokens, with what a separator adds.

    `lengths`: of shape ``(documents,)``. `separator`: tokens that follow each document that has
    any. Raises `ValueError` where a length is negative.
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

    def checksum(self) -> int:
        """CRC-32 of all lengths as int64: a quarter of a second for 10^8."""
        step = _BLOCK * _BLOCKS_AT_ONCE
        found = 0
        for start in range(0, len(self), step):
            found = crc32(self.array[start : start + step].astype(np.int64).data, found)
        return found

    def sums(self, unit: int = 1, block: int = _BLOCK) -> NDArray[np.int64]:
        """Of each `block` documents: how many whole units of so many tokens they have."""
        step = block * _BLOCKS_AT_ONCE
        sums = np.empty(-(-len(self) // block), np.int64)
        for start in range(0, len(self), step):
            lengths = self[start : start + step]
            if lengths.min(initial=0) < 0:
                worst = start + int(lengths.argmin())
                raise ValueError(f"document {worst} has the length {self.array[worst]}")
            if unit != 1:
                lengths //= unit
            starts = np.arange(0, len(lengths), block)
            first = start // block
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
        self._blocks = np.arange(len(self._sums))
        self._ordered = lru_cache(maxsize=2)(self._order_of)

    @property
    def nb_sequences(self) -> int:
        return -(-self._total // self._length)

    def pieces_of(self, sequences: Sequence[int], order: int | None = None) -> ManyPieces:
        firsts = np.asarray(sequences, np.int64) * self._length
        lasts = np.minimum(firsts + self._length, self._total)
        blocks, ends = (self._blocks, self._ends) if order is None else self._ordered(order)
        opening = np.searchsorted(ends, firsts, "right")
        closing = np.searchsorted(ends, lasts - 1, "right")
        # Every block that one of them touches, once. Laid side by side, the documents of these
        # blocks end at ever later tokens, and those of a sequence are neighbours.
        places = np.unique(ranges(opening, closing - opening + 1))
        documents = self._in_blocks(blocks[places], order)
        lengths = self._lengths[documents]
        stops = np.cumsum(lengths)
        skipped = ends[places] - np.cumsum(self._sums[blocks[places]])  # in the blocks between
        stops += np.repeat(skipped, self._sizes(blocks[places]))
        low = np.searchsorted(stops, firsts, "right")
        counts = np.searchsorted(stops, lasts, "left") + 1 - low
        own = ranges(low, counts)
        lengths, begins = lengths[own], stops[own] - lengths[own]
        pieces = Pieces(
            documents[own],
            np.maximum(np.repeat(firsts, counts) - begins, 0),
            np.minimum(np.repeat(lasts, counts) - begins, lengths),
        )
        some = pieces.stops > pieces.starts  # documents without a token are in no sequence
        if some.all():
            return ManyPieces(pieces, counts)
        counts = np.add.reduceat(some, np.cumsum(counts) - counts, dtype=np.int64)
        return ManyPieces(
            Pieces(pieces.documents[some], pieces.starts[some], pieces.stops[some]), counts
        )

    def _sizes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many documents each block has: only the last may have fewer."""
        return np.minimum(len(self._lengths) - blocks * _BLOCK, _BLOCK)

    def _in_blocks(self, blocks: NDArray[np.int64], order: int | None) -> NDArray[np.int64]:
        """The documents of these blocks, block after block, in this order."""
        sizes = self._sizes(blocks)
        if order is None:
            return ranges(blocks * _BLOCK, sizes)
        shuffled = [
            block * _BLOCK + bijection(_PLACES[:size], size, key64(_WITHIN, order, block))
            for block, size in zip(blocks.tolist(), sizes.tolist(), strict=True)
        ]
        return np.concatenate(shuffled).astype(np.int64)

    def _order_of(self, order: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The blocks in this order, and where each ends."""
        count = len(self._sums)
        places = np.arange(count, dtype=np.uint64)
        blocks = bijection(places, count, key64(_ORDER, order)).astype(np.int64)
        return blocks, np.cumsum(self._sums[blocks])

    def __reduce__(self) -> tuple[type[SplitPacking], tuple[Lengths, int]]:
        return type(self), (self._lengths, self._length)
