"""The order of an epoch: a keyed permutation of positions, computed only where it is looked at.

``index = (q + offset) mod n``, where `q` is the position permuted inside its window of `window`
positions, and `offset` rotates the whole epoch. Both are functions of
``(seed, epoch, n, window)`` and of nothing else. A full shuffle is one window of `n`.

- A window of up to ``SORTED_WINDOW`` positions is put in the order of a hash of its positions
  (counter-based: any window by itself, in any order).
- A larger one is permuted by a Feistel network on a domain of ``rows * columns``, a little larger
  than the window, with cycle walking: what falls outside is sent through again (Black and Rogaway,
  "Ciphers with arbitrary finite domains", CT-RSA 2002). Its cost does not depend on its size.

Integers only: the order is the same on every machine and with every numpy.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from .keys import key64

__all__ = ["SORTED_WINDOW", "bijection", "shuffled"]

SORTED_WINDOW = 4096
"""Positions; the largest window that is permuted as a whole."""
_BLOCK = 512
"""Positions that are computed together at least: neighbouring batches share the cost."""
_BLOCKS_KEPT = 16
"""At most 16 * 4096 * 8 bytes = 0.5 MB a process."""
_FEISTEL_ROUNDS = 4
"""Each changes both halves once."""

_ROTATION, _WINDOWS, _ROUND = 1, 2, 3  # purposes of keys

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

    `window` in positions; 0, or one of at least `nb_samples`, is a full shuffle. Needs
    ``0 <= first < last <= nb_samples``. Time and memory: proportional to ``last - first``, plus at
    most one window of `SORTED_WINDOW` at both ends.
    """
    if window == 0 or window > nb_samples:
        window = nb_samples
    pieces = []
    while first < last:
        start, stop = _block_around(first, nb_samples, window)
        block = _block(start, stop, nb_samples, window, seed, epoch)
        pieces.append(block[first - start : last - start])
        first = stop
    return pieces[0].copy() if len(pieces) == 1 else np.concatenate(pieces)


def _block_around(position: int, nb_samples: int, window: int) -> tuple[int, int]:
    """The positions that are computed together with `position`: whole windows, or part of one."""
    if window <= SORTED_WINDOW:
        size = max(1, _BLOCK // window) * window
        start = position - position % size
        return start, min(start + size, nb_samples)
    left = position - position % window
    start = position - (position - left) % _BLOCK
    return start, min(start + _BLOCK, left + window, nb_samples)


@lru_cache(maxsize=_BLOCKS_KEPT)
def _block(
    start: int, stop: int, nb_samples: int, window: int, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Sample indices at the positions ``[start, stop)`` of one block; read-only."""
    rotation, epoch_key = _epoch(nb_samples, seed, epoch)
    places: NDArray[np.uint32] | NDArray[np.uint64]
    if window <= SORTED_WINDOW:
        left, size = start, stop - start
        places = _sorted_windows(size, window, key64(epoch_key, left))
    else:
        left = start - start % window
        size = min(window, nb_samples - left)
        places = np.arange(start - left, stop - left, dtype=np.uint64)
        places = bijection(places, size, key64(epoch_key, left))
    first = left + rotation
    indices = places.astype(np.int64)
    indices += first
    if first + size > nb_samples:
        indices -= nb_samples * (indices >= nb_samples)
    indices.setflags(write=False)
    return indices


@lru_cache(maxsize=_BLOCKS_KEPT)
def _epoch(nb_samples: int, seed: int, epoch: int) -> tuple[int, int]:
    """How far the epoch is rotated, uniform in ``[0, nb_samples)``, and the key of its windows."""
    rotation = (key64(_ROTATION, seed, epoch) * nb_samples) >> 64
    return rotation, key64(_WINDOWS, seed, epoch)


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
    hashes = other * _MULTIPLIER_IN
    hashes += key
    hashes ^= hashes >> _HALF
    hashes *= _MULTIPLIER_OUT
    hashes >>= _HALF
    hashes *= modulus
    hashes >>= _HALF
    hashes += half
    # Subtracting too much wraps round to something huge, so the minimum is the remainder.
    reduced: NDArray[np.uint64] = np.minimum(hashes, hashes - modulus)
    return reduced


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
