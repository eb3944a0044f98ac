"""The order of an epoch: a keyed permutation of positions, computed only where it is looked at.

A full shuffle permutes all positions. A nearby shuffle of a window of `w` positions reads
neighbours at about the same time and mixes places that lie far apart all the same:

- The samples fall into *runs* of neighbours, each ``isqrt(w / 32)`` long (16 for ``w = 8192``).
- The runs are permuted, and as many of them as have `w` samples together are a *group*.
- A group gives one sample of each of its runs, in a random order, then the next one of each in
  another order, and so on. A run is read upwards from a random sample of it, and round its end.

So a batch of up to ``w / isqrt(w / 32)`` samples (512) has hardly two of one run, and the samples
under way, which a dataset has to keep at hand if it reads more than it is asked for, are those of
one group: about `w`, in so many runs. What is left of the samples by whole runs, fewer than a run,
changes places with samples all over the epoch. Everything is a function of
``(seed, epoch, n, w)``, and the whole is rotated by a random offset.

- Up to ``SORTED_WINDOW`` positions are put in the order of a hash of theirs (counter-based: any
  by themselves, in any order).
- More are permuted by a Feistel network on a domain of ``rows * columns``, a little larger
  than they are, with cycle walking: what falls outside is sent through again (Black and Rogaway,
  "Ciphers with arbitrary finite domains", CT-RSA 2002). Its cost does not depend on their number.

Integers only: the order is the same on every machine and with every numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from .keys import key64

__all__ = ["SORTED_WINDOW", "bijection", "shuffled"]

SORTED_WINDOW = 4096
"""Positions; the most that are permuted by sorting."""
_RUNS_BY_LENGTH = 32
"""So many times as many runs are mixed as they are long."""
_BLOCK = 512
"""Positions that are computed together at least: neighbouring batches share the cost."""
_BLOCKS_KEPT = 256
"""Of a mixture, each source needs one or two. Most have 512 positions: 1 MB a process."""
_FEISTEL_ROUNDS = 4
"""Each changes both halves once."""

_ROTATION, _WINDOWS, _ROUND, _RUNS = 1, 2, 3, 6  # purposes of keys; plan.py has 4 and 5

# A sort key is 20 bits of hash over 12 bits of place: all keys differ, so the order does not depend
# on the sorting algorithm; two of 4096 with equal hashes are rare enough not to matter.
# Constants are arrays of no dimension: numpy is faster with these than with its scalars.
_PLACE = np.arange(SORTED_WINDOW, dtype=np.uint32)
_PLACE_BITS = np.array(SORTED_WINDOW - 1, dtype=np.uint32)
_MULTIPLIER = np.array((0x846CA68B << 12) & 0xFFFFFFFF, dtype=np.uint32)
_SHIFT = np.array(15, dtype=np.uint32)

_MULTIPLIER_IN = np.array(0x9E3779B97F4A7C15, dtype=np.uint64)
_MULTIPLIER_OUT = np.array(0xD6E8FEB86659FD93, dtype=np.uint64)
_HALF = np.array(32, dtype=np.uint64)


def shuffled(
    first: int, last: int, *, nb_samples: int, window: int, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Sample indices at the positions ``[first, last)``: int64, shape ``(last - first,)``.

    `window` in positions; below 128 (runs of one sample), and from `nb_samples` on, it is a full
    shuffle. Needs
    ``0 <= first < last <= nb_samples``. Time and memory: proportional to ``last - first``, plus at
    most `SORTED_WINDOW` at both ends.
    """
    layout = _layout(nb_samples, window)
    pieces = []
    while first < last:
        start, stop = layout.block_around(first)
        block = _block(layout, start, stop, seed, epoch)
        pieces.append(block[first - start : last - start])
        first = stop
    return pieces[0].copy() if len(pieces) == 1 else np.concatenate(pieces)


@dataclass(frozen=True, eq=False)
class _Layout:
    """How positions fall into groups, and these into columns: one sample of each run of a group.

    A full shuffle is one group of runs of one sample. Two are the same if they are one object:
    comparing fields at every look into a cache would take as long as the rest of a small batch.
    """

    nb_samples: int
    run: int  # samples
    nb_runs: int
    nb_groups: int

    @cached_property
    def whole(self) -> int:
        """Positions that fall into groups; behind them are those of what is left by whole runs."""
        return self.run * self.nb_runs

    @cached_property
    def stride(self) -> int:
        """The samples that are left change places with those at its multiples."""
        return self.whole // max(1, self.nb_samples - self.whole)

    def group(self, position: int) -> tuple[int, int]:
        """The group that `position` is in: the rank of its first run, and its number of runs."""
        number = ((position // self.run + 1) * self.nb_groups - 1) // self.nb_runs
        first = self.nb_runs * number // self.nb_groups
        return first, self.nb_runs * (number + 1) // self.nb_groups - first

    def block_around(self, position: int) -> tuple[int, int]:
        """What is computed together with `position`: columns, part of one, or one position."""
        if position >= self.whole:
            return position, position + 1
        first, runs = self.group(position)
        start, stop = first * self.run, (first + runs) * self.run
        if runs <= SORTED_WINDOW:
            size = max(1, _BLOCK // runs) * runs
        else:
            start = position - (position - start) % runs
            stop, size = start + runs, _BLOCK
        start = position - (position - start) % size
        return start, min(start + size, stop)


@lru_cache(maxsize=_BLOCKS_KEPT)
def _layout(nb_samples: int, window: int) -> _Layout:
    run = isqrt(window // _RUNS_BY_LENGTH)
    if run <= 1 or window >= nb_samples:
        return _Layout(nb_samples, 1, nb_samples, 1)
    nb_runs = nb_samples // run
    return _Layout(nb_samples, run, nb_runs, max(1, (run * nb_runs + window // 2) // window))


@lru_cache(maxsize=_BLOCKS_KEPT)
def _block(layout: _Layout, start: int, stop: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Sample indices at the positions ``[start, stop)`` of one block; read-only."""
    nb_samples, whole, stride = layout.nb_samples, layout.whole, layout.stride
    rotation, epoch_key, runs_key = _epoch(nb_samples, seed, epoch)
    if start >= whole:
        position = (start - whole) * stride
        around = layout.block_around(position)
        found = _in_runs(layout, *around, epoch_key, runs_key)
        indices = found[position - around[0] :][:1].astype(np.int64)
    else:
        indices = _in_runs(layout, start, stop, epoch_key, runs_key).astype(np.int64)
        for left in range(-(-start // stride), min(nb_samples - whole, -(-stop // stride))):
            indices[left * stride - start] = whole + left
    indices += rotation
    indices -= nb_samples * (indices >= nb_samples)
    indices.setflags(write=False)
    return indices


def _in_runs(
    layout: _Layout, start: int, stop: int, epoch_key: int, runs_key: int
) -> NDArray[np.uint32] | NDArray[np.uint64]:
    """The samples of whole runs at the positions ``[start, stop)`` of one block."""
    first, runs = layout.group(start)
    origin = first * layout.run
    column = (start - origin) // runs
    rows: NDArray[np.uint32] | NDArray[np.uint64]
    if runs <= SORTED_WINDOW:
        rows = _sorted_windows(stop - start, runs, key64(epoch_key, start))
    else:
        left = origin + column * runs
        rows = np.arange(start - left, stop - left, dtype=np.uint64)
        rows = bijection(rows, runs, key64(epoch_key, left))
    if layout.run == 1:
        return rows
    if runs <= SORTED_WINDOW:
        rows %= np.uint32(runs)
        chosen, begins = (each[rows] for each in _group(layout, first, runs, runs_key))
    else:
        chosen, begins = _runs(layout, rows + np.uint64(first), runs_key)
    columns = np.arange(stop - start, dtype=np.uint64) // np.uint64(runs) + np.uint64(column)
    columns += begins
    columns %= np.uint64(layout.run)
    indices: NDArray[np.uint64] = columns + chosen * np.uint64(layout.run)
    return indices


@lru_cache(maxsize=_BLOCKS_KEPT)
def _group(
    layout: _Layout, first: int, runs: int, key: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """All runs of a group, for its many columns; see `_runs`."""
    return _runs(layout, np.arange(first, first + runs, dtype=np.uint64), key)


def _runs(
    layout: _Layout, ranks: NDArray[np.uint64], key: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The runs of these ranks, and the place in each that is read first."""
    chosen = bijection(ranks, layout.nb_runs, key)
    begins = _hashed(chosen, np.uint64(key64(key, 1)))
    begins *= np.uint64(layout.run)
    begins >>= _HALF
    return chosen, begins


@lru_cache(maxsize=_BLOCKS_KEPT)
def _epoch(nb_samples: int, seed: int, epoch: int) -> tuple[int, int, int]:
    """How far the epoch is rotated, uniform in ``[0, nb_samples)``, and its keys."""
    rotation = (key64(_ROTATION, seed, epoch) * nb_samples) >> 64
    return rotation, key64(_WINDOWS, seed, epoch), key64(_RUNS, seed, epoch)


def _sorted_windows(size: int, window: int, key: int) -> NDArray[np.uint32]:
    """``[0, size)``, each `window` of it (the last may be shorter) in an order of its own."""
    # Multiply by a random odd number, fold, and multiply again, into the upper 20 bits.
    hashes: NDArray[np.uint32] = _SCATTERED[:size] ^ np.array(key >> 32, dtype=np.uint32)
    hashes *= np.array(key & 0xFFFFFFFF | 1, dtype=np.uint32)
    hashes ^= hashes >> _SHIFT
    hashes *= _MULTIPLIER
    hashes |= _PLACE[:size]
    whole = size - size % window
    hashes[:whole].reshape(-1, window).sort(axis=1)
    hashes[whole:].sort()
    hashes &= _PLACE_BITS
    return hashes


def bijection(places: NDArray[np.uint64], size: int, key: int) -> NDArray[np.uint64]:
    """Where a permutation of ``[0, size)``, chosen by the 64-bit `key`, sends each of `places`.

    Any shape; ``1 <= size <= 2**62``. A few rounds of a generalized Feistel network: each half
    is rotated by a hash of the other one.
    """
    rows = isqrt(size - 1) + 1
    columns = -(-size // rows)
    sent = _feistel(places, rows, columns, key)
    # About one in sqrt(size) falls outside. It came from inside, so its cycle leads back there.
    while (outside := sent >= np.uint64(size)).any():
        sent[outside] = _feistel(sent[outside], rows, columns, key)
    return sent


def _feistel(places: NDArray[np.uint64], rows: int, columns: int, key: int) -> NDArray[np.uint64]:
    nb_rows, nb_columns = np.uint64(rows), np.uint64(columns)
    row: NDArray[np.uint64] = places // nb_columns
    column = places - row * nb_columns
    for key_row, key_column in _round_keys(key):
        row = _rotated(row, nb_rows, column, key_row)
        column = _rotated(column, nb_columns, row, key_column)
    row *= nb_columns
    row += column
    return row


def _rotated(
    half: NDArray[np.uint64], modulus: np.uint64, other: NDArray[np.uint64], key: np.uint64
) -> NDArray[np.uint64]:
    """``(half + hash of other) mod modulus``; everything below ``2**32``, products below 2**64."""
    hashes = _hashed(other, key)
    hashes *= modulus
    hashes >>= _HALF
    hashes += half
    # Subtracting too much wraps round to something huge, so the minimum is the remainder.
    reduced: NDArray[np.uint64] = np.minimum(hashes, hashes - modulus)
    return reduced


def _hashed(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """32 bits for each."""
    hashes = values * _MULTIPLIER_IN
    hashes += key
    hashes ^= hashes >> _HALF
    hashes *= _MULTIPLIER_OUT
    hashes >>= _HALF
    return hashes


@lru_cache(maxsize=64)
def _round_keys(key: int) -> tuple[tuple[np.uint64, np.uint64], ...]:
    return tuple(
        (np.uint64(key64(_ROUND, key, number, 0)), np.uint64(key64(_ROUND, key, number, 1)))
        for number in range(_FEISTEL_ROUNDS)
    )


def _scattered() -> NDArray[np.uint32]:
    """A fixed 32-bit hash of each place: where the hashes of every window start from."""
    hashes: NDArray[np.uint32] = _PLACE * np.uint32(0x9E3779B1) + np.uint32(0x7F4A7C15)
    for multiplier in (np.uint32(0x7FEB352D), np.uint32(0x846CA68B)):
        hashes ^= hashes >> np.uint32(16)
        hashes *= multiplier
    hashes ^= hashes >> np.uint32(16)
    return hashes


_SCATTERED = _scattered()
