"""A worker's part of a stream that tells its shards: the items of its shards, mixed or not.

Stands in the place of a `Shard`. Where it is, is told with each batch: how many items have left,
and how long the shards were that were read to their end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from swift_loader.batch.fetch import ENDS, Raised
from swift_loader.batch.wrapped import listeners_of
from swift_loader.errors import StateError
from swift_loader.order.sharded import units_of_text
from swift_loader.plan import Plan
from swift_loader.plan.shards import Buffered, Done, ShardDeal, Unit, pick, replayed
from swift_loader.sources.shards import Shards, shorter
from swift_loader.worker.place import Place
from swift_loader.worker.split import Split

__all__ = ["Lane"]

_GAP = 64  # items that are read through rather than seeking
_MOST_RAISED = 16  # in a row, and the rest of a shard is given up


class Lane(Iterator[Any]):
    """The items of one worker. `begin` starts an epoch, and may do so at any time."""

    tells_always = True

    def __init__(
        self,
        dataset: Shards,
        split: Split,
        place: Place,
        index: int,
        log: Callable[[str], object] | None = None,
    ) -> None:
        self._dataset = dataset
        self.split = split
        self._place = place
        self._index = index
        self._log = log
        self.position = 0  # items that have left in this epoch
        self.ended = False
        self._units: list[Unit] = []
        self._lengths: list[int] = []
        self._inputs: Iterator[Any] = iter(())
        self._slots: list[Any] = []
        self._vacant: int | None = None
        self._size = 0
        self._key = 0

    def begin(self, epoch: int, plan: Plan, saved: dict[str, Any] | None) -> None:
        """Go to the beginning of an epoch, or to where a saved state stands.

        Raises `StateError` where a shard ends before an item that was read from it.
        """
        dataset, place = self._dataset, self._place
        for listener in listeners_of(dataset):
            listener.set_epoch(epoch)
        deal = ShardDeal(
            len(dataset.shards),
            plan.nb_consumer,
            place.worker_per_consumer,
            plan.shuffle,
            plan.seed,
            dataset.buffer,
            units_of_text(plan.shards),
        )
        consumer = place.consumer_index
        self._units = deal.lane(epoch, consumer, self._index)
        self._key = deal.key(epoch, consumer, self._index)
        self._size = dataset.buffer if plan.shuffle else 0
        self.ended = False
        done = Done() if saved is None else Done(saved["left"], tuple(saved["lengths"]))
        self.position = done.left
        self._lengths = list(done.lengths)
        buffer = replayed(self._size, done, len(self._units), self._key)
        self._slots = [None] * len(buffer.items)
        self._vacant = buffer.vacant
        self._inputs = self._read(*self._restored(buffer))

    def __next__(self) -> Any:
        """The next item. Raises `StopIteration`, and what the reader raises."""
        if self.ended:
            raise StopIteration
        item = self._next_read() if self._size < 1 else self._next_mixed()
        if item is _NOTHING:
            self.ended = True
            raise StopIteration
        self.position += 1
        if type(item) is Raised:
            raise item.error
        return item

    def state(self, batch: int, over: bool = False) -> bytes:
        """Where it stands before batch `batch` of its own; nothing where the epoch is over."""
        if over:
            return b""
        lane = {"batch": batch, "left": self.position, "lengths": self._lengths}
        return json.dumps(lane, separators=(",", ":")).encode()

    def close(self) -> None:
        self._inputs = iter(())
        self._slots = []

    def _next_read(self) -> Any:
        return next(self._inputs, _NOTHING)

    def _next_mixed(self) -> Any:
        slots = self._slots
        if self._vacant is None:
            while len(slots) < self._size and (item := self._next_read()) is not _NOTHING:
                slots.append(item)
        elif (item := self._next_read()) is not _NOTHING:
            slots[self._vacant] = item
        else:
            slots[self._vacant] = slots[-1]
            slots.pop()
        if not slots:
            return _NOTHING
        self._vacant = pick(self._key, self.position, len(slots))
        item, slots[self._vacant] = slots[self._vacant], None
        return item

    def _restored(self, buffer: Buffered) -> tuple[int, int]:
        """Read the items of the buffer again; returns the unit and the item to go on with."""
        wanted: dict[int, dict[int, int]] = {}  # by unit: by item, its place in the buffer
        ends = [0]
        for length in self._lengths:
            ends.append(ends[-1] + length)
        for place, number in enumerate(buffer.items):
            if place == buffer.vacant:
                continue
            unit = next(n for n in reversed(range(len(ends))) if ends[n] <= number)
            wanted.setdefault(unit, {})[number - ends[unit]] = place
        current = len(self._lengths)
        for unit, places in sorted(wanted.items()):
            last = max(places)
            for number, item in self._items(self._units[unit], min(places)):
                if number in places:
                    self._slots[places.pop(number)] = item
                if number >= last:
                    break
            if places:
                raise shorter(self._dataset.shards[self._units[unit].shard], min(places))
        return current, max(0, buffer.next_read - ends[-1])

    def _read(self, first: int, start: int) -> Iterator[Any]:
        """The items of all units from item `start` of unit `first` on."""
        for number in range(first, len(self._units)):
            count = start
            for at, item in self._items(self._units[number], start):
                count = at + 1
                yield item
            self._lengths.append(count)
            start = 0

    def _items(self, unit: Unit, first: int) -> Iterator[tuple[int, Any]]:
        """The items of a unit from number `first` on, each with its number."""
        items: Iterator[Any] = iter(())
        at = -1  # where `items` is in the shard; -1: it is not open
        number, raised = first, 0
        cause: BaseException | None = None
        for start, stop in unit.positions(first, 2**62):
            if at < 0 or (start > at + _GAP and self._dataset.seeks):
                items, at = self._opened(unit.shard, start), start
            while at < start:
                item = _next_of(items)
                if type(item) is Raised:
                    cause = item.error  # a generator has no more after it
                if item is _NOTHING:
                    raise shorter(self._dataset.shards[unit.shard], at) from cause
                at += 1
            while stop is None or at < stop:
                item = _next_of(items)
                if item is _NOTHING:
                    if stop is not None and not raised:
                        raise shorter(self._dataset.shards[unit.shard], at)
                    return
                at += 1
                yield number, item
                number += 1
                raised = raised + 1 if type(item) is Raised else 0
                if raised and self._dataset.seeks and raised < _MOST_RAISED:
                    items = self._opened(unit.shard, at)

    def _opened(self, shard: int, start: int) -> Iterator[Any]:
        """The items from `start` on; after one that raised, a generator has no more."""
        try:
            return self._dataset.items(shard, start, self._log)
        except StateError:
            raise
        except Exception as error:  # noqa: BLE001 - raised in the place of an item
            return iter((Raised(error),))


def _next_of(items: Iterator[Any]) -> Any:
    try:
        return next(items, _NOTHING)
    except BaseException as error:
        if isinstance(error, ENDS):
            raise
        return Raised(error)


_NOTHING = object()  # stands for the end
