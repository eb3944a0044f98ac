"""Sequences of whole documents: best fit, largest first. Pure.

A document longer than a sequence fills as many as it can; what is left of it is a piece like the
short documents. Pieces are packed block by block, so that memory is bounded and the documents of a
sequence lie near one another. Within a block, best-fit-decreasing: each piece, the largest first,
goes into the fullest sequence that it fits into. There are many pieces and few lengths; so all
pieces of one length are placed together, into all sequences with the same room, and the work
depends on the number of lengths (Ding et al., "Fewer Truncations Improve Language Modeling", 2024,
pack so with a segment tree, one piece at a time).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .packing import Lengths, ManyPieces, Pieces, ranges
from .shuffle import bijection

__all__ = ["BestFitPacking", "FitTable", "fit"]

_BLOCK = 2**20  # documents
_FULLS_BLOCK = 128  # documents: few, as all of a block are looked at to find a long one
_MIXED = 0x5EED


@dataclass(frozen=True)
class FitTable:
    """What is worked out once: where each piece goes.

    Attributes
    ----------
    members:
        The documents of all pieces, sequence after sequence, each less the first document of its
        block: uint32, of shape ``(pieces,)``.
    ends:
        Where the members of each sequence of pieces end, within its block: uint32.
    blocks:
        For each block, ``(sequences, full sequences, members, sequences of pieces)`` before it and,
        in one more row, all of them: int64, of shape ``(blocks + 1, 4)``.
    """

    members: NDArray[np.uint32]
    ends: NDArray[np.uint32]
    blocks: NDArray[np.int64]

    @classmethod
    def of(cls, lengths: Lengths, length: int) -> FitTable:
        """Raises `ValueError` for a negative length."""
        nb_blocks = -(-len(lengths) // _BLOCK)
        blocks = np.zeros((nb_blocks + 1, 4), np.int64)
        members, filled = np.empty(len(lengths), np.uint32), 0  # untouched pages take no memory
        ends = []
        for block in range(nb_blocks):
            own = lengths[block * _BLOCK : (block + 1) * _BLOCK]
            if own.min(initial=0) < 0:
                worst = int(own.argmin())
                raise ValueError(f"document {block * _BLOCK + worst} has the length {own[worst]}")
            fulls, rest = np.divmod(own, length)
            packed, bounds = fit(rest, length)
            members[filled : filled + len(packed)] = packed
            filled += len(packed)
            ends.append(bounds)
            nb_full = int(fulls.sum())
            added = nb_full + len(bounds), nb_full, len(packed), len(bounds)
            blocks[block + 1] = blocks[block] + added
        return cls(
            members[:filled],
            np.concatenate(ends) if ends else np.empty(0, np.uint32),
            blocks,
        )


class BestFitPacking:
    """Sequences of at most `length` tokens, none of which cuts a document that would fit whole."""

    def __init__(self, lengths: Lengths, length: int, table: FitTable | None = None) -> None:
        self._lengths = lengths
        self._length = length
        self.table = table if table is not None else FitTable.of(lengths, length)
        has_fulls = self.table.blocks[-1, 1] > 0
        fulls = lengths.sums(length, _FULLS_BLOCK) if has_fulls else np.empty(0, np.int64)
        self._fulls = np.cumsum(fulls)

    @property
    def nb_sequences(self) -> int:
        return int(self.table.blocks[-1, 0])

    def pieces_of(self, sequences: Sequence[int], order: int | None = None) -> ManyPieces:
        """Those of several, found together; the documents of each stay together in every order."""
        wanted = np.asarray(sequences, np.int64)
        before = self.table.blocks
        block = np.searchsorted(before[:, 0], wanted, "right") - 1
        place = wanted - before[block, 0]
        nb_full = before[block + 1, 1] - before[block, 1]
        whole = place < nb_full
        if not whole.any():
            return self._binned(block, place - nb_full)
        rest = np.flatnonzero(~whole)
        packed = self._binned(block[rest], (place - nb_full)[rest])
        long = np.flatnonzero(whole)
        counts = np.ones(len(wanted), np.int64)
        counts[rest] = packed.counts
        filled = self._full(before[block[long], 1] + place[long])
        return ManyPieces(packed.pieces.with_others(filled, (np.cumsum(counts) - 1)[long]), counts)

    def _binned(self, block: NDArray[np.int64], place: NDArray[np.int64]) -> ManyPieces:
        """The pieces of these sequences of pieces of their blocks."""
        table, before = self.table, self.table.blocks
        bins = before[block, 3] + place
        stops = table.ends[bins].astype(np.int64)
        starts = np.where(place > 0, table.ends[bins - 1], 0).astype(np.int64)
        counts = stops - starts
        members = ranges(before[block, 2] + starts, counts)
        own = table.members[members].astype(np.int64) + np.repeat(block * _BLOCK, counts)
        lengths = self._lengths[own]
        return ManyPieces(Pieces(own, lengths - lengths % self._length, lengths), counts)

    def _full(self, numbers: NDArray[np.int64]) -> Pieces:
        """The sequences that long documents fill: those with these numbers among all such."""
        block = np.searchsorted(self._fulls, numbers, "right")
        blocks = np.unique(block)
        starts = blocks * _FULLS_BLOCK
        sizes = np.minimum(len(self._lengths) - starts, _FULLS_BLOCK)
        documents = ranges(starts, sizes)
        fulls = self._lengths[documents] // self._length
        ends = np.cumsum(fulls)
        # Sequences of the blocks between are not among these.
        ends += np.repeat(self._fulls[blocks] - ends[np.cumsum(sizes) - 1], sizes)
        at = np.searchsorted(ends, numbers, "right")
        firsts = (numbers - (ends[at] - fulls[at])) * self._length
        return Pieces(documents[at], firsts, firsts + self._length)

    def __reduce__(self) -> tuple[type[BestFitPacking], tuple[Lengths, int, FitTable]]:
        return type(self), (self._lengths, self._length, self.table)


def fit(sizes: NDArray[np.int64], room: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Pieces of these sizes, below `room`, by best-fit-decreasing; those of size 0 are left out.

    Returns the pieces' places in `sizes`, sequence after sequence, and where each sequence ends in
    that: two uint32 arrays. The sequences come in a fixed order that mixes full and less full ones.
    """
    counts = np.bincount(sizes, minlength=room + 1)
    by_size = np.argsort(sizes.astype(np.min_scalar_type(room)), kind="stable").astype(np.uint32)
    begins = np.concatenate(([0], np.cumsum(counts)))
    members: list[NDArray[np.uint32]] = []
    widths: list[tuple[int, int]] = []  # of each group: sequences, pieces in each
    for count, content in _groups(counts, room):
        columns = []
        for size, times in content:
            start = begins[size]
            begins[size] += count * times
            columns.append(by_size[start : start + count * times].reshape(count, times))
        table = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
        members.append(table.reshape(-1))
        widths.append((count, table.shape[1]))
    if not members:
        return np.empty(0, np.uint32), np.empty(0, np.uint32)
    return _mixed(np.concatenate(members), np.array(widths, np.int64))


def _groups(counts: NDArray[np.int64], room: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """Sequences with the same content: how many, and ``(size, times)`` of their pieces.

    Sequences are grouped by the room that is left in them. The sizes of rooms that some have are
    the bits of one number, so the smallest that is large enough is found at once.
    """
    open_: dict[int, list[tuple[int, _Content]]] = {}
    rooms = 0
    done: list[tuple[int, _Content]] = []

    def put(left: int, count: int, content: _Content) -> None:
        nonlocal rooms
        if left == 0:
            done.append((count, content))
            return
        open_.setdefault(left, []).append((count, content))
        rooms |= 1 << left

    for size in np.flatnonzero(counts)[::-1].tolist():
        if size == 0:
            break
        todo = int(counts[size])
        while todo:
            fitting = rooms >> size
            if not fitting:
                times = min(room // size, todo)
                whole, rest = divmod(todo, times)
                put(room - times * size, whole, (size, times, None))
                if rest:
                    put(room - rest * size, 1, (size, rest, None))
                break
            left = size + (fitting & -fitting).bit_length() - 1
            groups = open_[left]
            count, content = groups.pop()
            if not groups:
                del open_[left]
                rooms &= ~(1 << left)
            times = min(left // size, todo)
            filled, rest = divmod(todo, times)
            if filled >= count:
                filled, rest = count, 0
            todo -= filled * times + rest
            put(left - times * size, filled, (size, times, content))
            if rest:
                put(left - rest * size, 1, (size, rest, content))
            unused = count - filled - (rest > 0)
            if unused:
                put(left, unused, content)
    for groups in open_.values():
        done += groups
    return [(count, _listed(content)) for count, content in done]


_Content = tuple[int, int, "_Content | None"]  # size, times, and what was there before


def _listed(content: _Content | None) -> list[tuple[int, int]]:
    pieces = []
    while content is not None:
        size, times, content = content
        pieces.append((size, times))
    return pieces[::-1]


def _mixed(
    members: NDArray[np.uint32], widths: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The same sequences in an order in which those of one group are far apart."""
    sizes = np.repeat(widths[:, 1], widths[:, 0])
    starts = np.cumsum(sizes) - sizes
    order = bijection(np.arange(len(sizes), dtype=np.uint64), len(sizes), _MIXED)
    sizes, starts = sizes[order], starts[order]
    return members[ranges(starts, sizes)], np.cumsum(sizes).astype(np.uint32)
