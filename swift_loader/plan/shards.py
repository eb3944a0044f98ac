"""The shards of a stream: who reads which, in what order, and what is left of them. Pure.

All workers of all consumers are *lanes*. In each epoch the shards, shuffled or not, are dealt round
the lanes. A lane reads its shards one after the other; its items are numbered in the order in which
they are read. With a buffer, an item leaves the buffer at random and the next one read takes its
place (Hugging Face's ``IterableDataset.shuffle`` and webdataset's ``shuffle`` do it so); here the
place is a hash of how many have left. So how many items have left a lane, and how long the shards
were that it has read, tell exactly which items have left.

What is left of an epoch is a list of `Unit`, and can be dealt round any number of lanes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from .keys import key64
from .partition import Span, complement
from .shuffle import shuffled

__all__ = ["Buffered", "Done", "ShardDeal", "Unit", "left_of", "pick", "replayed"]

_ORDER, _LANE, _REST = 27, 28, 29  # purposes of keys
_END = 2**62  # of a shard whose end nobody knows
_LOOKED_AT = 1024  # picks together
_MIX = tuple(np.uint64(each) for each in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9))
_MIX_LAST, _HALF = np.uint64(0x94D049BB133111EB), np.uint64(32)


@dataclass(frozen=True)
class Unit:
    """Items of a shard: those at positions ``[start, stop)`` of each of `ranges`, ascending.

    The last range may have no end (None): to the end of the shard.
    """

    shard: int
    ranges: tuple[tuple[int, int | None], ...] = ((0, None),)

    def positions(self, first: int, last: int) -> list[tuple[int, int | None]]:
        """Where the items number `first` to `last` of the unit lie."""
        found: list[tuple[int, int | None]] = []
        before = 0
        for start, stop in self.ranges:
            size = (_END if stop is None else stop) - start
            low, high = max(first - before, 0), min(last - before, size)
            if low < high:
                end = None if stop is None and before + high >= _END - start else start + high
                found.append((start + low, end))
            before += size
        return found


@dataclass(frozen=True)
class Done:
    """What has become of a lane: items that have `left` it, and the lengths of the units that it
    has read to their end, in order."""

    left: int = 0
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class ShardDeal:
    """How an epoch's shards, or what is left of them, are dealt round `nb_consumer` consumers.

    `units`: what is left; None: all `nb_shards`. `buffer`: items; 0: each lane gives its items in
    the order of its shards.
    """

    nb_shards: int
    nb_consumer: int
    worker_per_consumer: int
    shuffle: bool
    seed: int
    buffer: int = 0
    units: tuple[Unit, ...] | None = None

    def lane(self, epoch: int, consumer: int, worker: int) -> list[Unit]:
        """The units of one worker, in the order in which it reads them."""
        lane = worker * self.nb_consumer + consumer
        step = self.nb_consumer * self.worker_per_consumer
        if self.units is not None:
            return list(self.units[lane::step])
        if not self.nb_shards:
            return []
        if not self.shuffle:
            return [Unit(shard) for shard in range(lane, self.nb_shards, step)]
        order = shuffled(
            0,
            self.nb_shards,
            nb_samples=self.nb_shards,
            window=0,
            seed=key64(_ORDER, self.seed),
            epoch=epoch,
        )
        return [Unit(shard) for shard in order[lane::step].tolist()]

    def key(self, epoch: int, consumer: int, worker: int) -> int:
        """Of the picks of a lane's buffer."""
        rest = 0
        for unit in self.units or ():
            bounds = (-1 if bound is None else bound for span in unit.ranges for bound in span)
            rest = key64(_REST, rest, unit.shard, *bounds)
        return key64(_LANE, self.seed, epoch, consumer, worker, rest)

    def without(self, epoch: int, done: Iterable[tuple[int, int, Done]]) -> tuple[Unit, ...]:
        """What is left where this has become of ``(consumer, worker)``; the rest is untouched.

        Shards that were begun come first.
        """
        known = {(consumer, worker): each for consumer, worker, each in done}
        begun: list[Unit] = []
        lanes: list[list[Unit]] = []
        for worker in range(self.worker_per_consumer):
            for consumer in range(self.nb_consumer):
                units = self.lane(epoch, consumer, worker)
                each = known.get((consumer, worker), Done())
                rest = left_of(units, each, self._size, self.key(epoch, consumer, worker))
                begun += [unit for unit in rest if unit not in units]
                lanes.append([unit for unit in rest if unit in units])
        longest = max(map(len, lanes), default=0)
        whole = [lane[at] for at in range(longest) for lane in lanes if at < len(lane)]
        return (*begun, *whole)

    @property
    def _size(self) -> int:
        return self.buffer if self.shuffle else 0


def pick(key: int, number: int, count: int) -> int:
    """Which of `count` items of a buffer is the next to leave, after `number` have left."""
    return int(_picks(key, number, number + 1, count)[0])


def _picks(key: int, first: int, last: int, count: int) -> NDArray[np.int64]:
    hashes = np.arange(first, last, dtype=np.uint64) * _MIX[0] + np.uint64(key)
    hashes ^= hashes >> np.uint64(30)
    hashes *= _MIX[1]
    hashes ^= hashes >> np.uint64(27)
    hashes *= _MIX_LAST
    hashes >>= _HALF
    hashes *= np.uint64(count)
    hashes >>= _HALF
    places: NDArray[np.int64] = hashes.astype(np.int64)
    return places


@dataclass(frozen=True)
class Buffered:
    """A buffer between two items: the numbers of the items in it, which of its places is to be
    filled again, and the number of the next item to be read."""

    items: list[int]
    vacant: int | None
    next_read: int

    @property
    def inside(self) -> list[int]:
        """The items that have not left."""
        return [item for place, item in enumerate(self.items) if place != self.vacant]


def replayed(size: int, done: Done, nb_units: int, key: int) -> Buffered:
    """The buffer of `size` places of a lane after `done`; costs about ``size * log(size)``."""
    left = done.left
    if size < 1:
        return Buffered([], None, left)
    if not left:
        return Buffered([], None, 0)
    total = sum(done.lengths) if len(done.lengths) == nb_units else None
    if total is not None and total < size:
        items, full = list(range(total)), 1
    else:
        full = left if total is None else min(left, total - size + 1)
        items = _full(size, full, key)
    vacant = pick(key, full - 1, len(items))
    for number in range(full, left):
        items[vacant] = items[-1]
        items.pop()
        vacant = pick(key, number, len(items))
    read = size + full - 1 if total is None or total >= size else total
    return Buffered(items, vacant, read)


def _full(size: int, left: int, key: int) -> list[int]:
    """The items in a buffer after `left` have left it, each replaced by the next one read.

    The last one to have left is not replaced yet. The latest picks say it: each place holds the
    item that was read after it was last picked.
    """
    items = np.arange(size)
    missing = size
    last = left - 1
    found = np.zeros(size, bool)
    while last > 0 and missing:
        first = max(0, last - _LOOKED_AT)
        places = _picks(key, first, last, size)[::-1]
        unique, at = np.unique(places, return_index=True)
        new = ~found[unique]
        items[unique[new]] = size + (last - 1 - at[new])
        found[unique] = True
        missing -= int(new.sum())
        last = first
    return [int(item) for item in items]


def left_of(units: Sequence[Unit], done: Done, size: int, key: int) -> list[Unit]:
    """What is left of a lane's units, in their order."""
    buffer = replayed(size, done, len(units), key)
    inside = sorted(buffer.inside)
    ends = list(accumulate(done.lengths, initial=0))
    within: dict[int, list[int]] = {}
    for item in inside:
        number = bisect_right(ends, item) - 1
        within.setdefault(number, []).append(item - ends[number])
    rest = []
    for number, unit in enumerate(units):
        kept: list[Span] = [(item, item + 1) for item in within.get(number, ())]
        if number == len(done.lengths):
            kept.append((max(0, buffer.next_read - ends[number]), _END))
        elif number > len(done.lengths):
            kept = [(0, _END)]
        gone = complement(_END, kept)
        ranges = [each for span in complement(_END, gone) for each in unit.positions(*span)]
        if ranges:
            rest.append(Unit(unit.shard, tuple(ranges)))
    return rest
