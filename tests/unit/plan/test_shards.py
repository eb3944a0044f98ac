"""Which items of which shards have left a lane, compared with a plain loop."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from swift_loader.plan.shards import Done, ShardDeal, Unit, left_of, pick, replayed

Item = tuple[int, int]  # a shard, and the place in it
KEY = 77


class Loop:
    """A lane, item by item, with a buffer that is a plain list."""

    def __init__(self, units: list[Unit], sizes: list[int], size: int) -> None:
        self.units = units
        self.size = size
        self.inputs = [
            (number, (unit.shard, place))
            for number, unit in enumerate(units)
            for start, stop in unit.ranges
            for place in range(start, min(sizes[unit.shard], 10**9 if stop is None else stop))
        ]
        self.counts = [sum(n == number for n, _ in self.inputs) for number in range(len(units))]
        self.read = self.left = 0
        self.ended = False
        self.slots: list[int] = []
        self.vacant: int | None = None

    def next_input(self) -> int | None:
        if self.ended or self.read == len(self.inputs):
            self.ended = True
            return None
        self.read += 1
        return self.read - 1

    def items(self) -> Iterator[Item]:
        while (item := self._next()) is not None:
            self.left += 1
            yield self.inputs[item][1]

    def _next(self) -> int | None:
        if not self.size:
            return self.next_input()
        if self.vacant is None:
            while len(self.slots) < self.size and (item := self.next_input()) is not None:
                self.slots.append(item)
        elif (item := self.next_input()) is not None:
            self.slots[self.vacant] = item
        else:
            self.slots[self.vacant] = self.slots[-1]
            self.slots.pop()
        if not self.slots:
            return None
        self.vacant = pick(KEY, self.left, len(self.slots))
        return self.slots[self.vacant]

    def done(self) -> Done:
        if self.ended:
            return Done(self.left, tuple(self.counts))
        begun = self.inputs[self.read - 1][0] if self.read else 0
        return Done(self.left, tuple(self.counts[:begun]))


sizes_of_shards = st.lists(st.integers(0, 9), max_size=6)
buffers = st.sampled_from([0, 1, 2, 3, 7, 50])


@given(sizes_of_shards, buffers)
@settings(max_examples=150)
def test_the_buffer_is_known_from_how_many_have_left(sizes: list[int], size: int) -> None:
    loop = Loop([Unit(shard) for shard in range(len(sizes))], sizes, size)
    for _ in loop.items():
        buffer = replayed(size, loop.done(), len(sizes), KEY)
        assert buffer.next_read == loop.read
        if size:
            assert (buffer.items, buffer.vacant) == (loop.slots, loop.vacant)


@given(sizes_of_shards, buffers, st.lists(st.integers(0, 20), max_size=4))
@settings(max_examples=200)
def test_stopped_anywhere_what_is_left_comes_once(
    sizes: list[int], size: int, stops: list[int]
) -> None:
    units = [Unit(shard) for shard in range(len(sizes))]
    seen: list[Item] = []
    for stop in [*stops, 10**6]:
        loop = Loop(units, sizes, size)
        for item in loop.items():
            seen.append(item)
            if loop.left == stop:
                break
        units = left_of(units, loop.done(), size, KEY)
    assert sorted(seen) == [(shard, at) for shard, n in enumerate(sizes) for at in range(n)]


@given(st.integers(0, 40), st.integers(1, 4), st.integers(1, 4), st.booleans(), st.integers(0, 3))
@settings(max_examples=100)
def test_every_shard_is_dealt_to_one_worker(
    nb_shards: int, consumers: int, workers: int, shuffle: bool, epoch: int
) -> None:
    deal = ShardDeal(nb_shards, consumers, workers, shuffle, 5)
    lanes = {(c, w): deal.lane(epoch, c, w) for c in range(consumers) for w in range(workers)}
    dealt = [unit.shard for lane in lanes.values() for unit in lane]
    assert sorted(dealt) == list(range(nb_shards))
    counts = [sum(len(lanes[c, w]) for w in range(workers)) for c in range(consumers)]
    assert max(counts) - min(counts) <= 1


def test_a_buffer_mixes_as_far_as_it_reaches() -> None:
    loop = Loop([Unit(0)], [10_000], 500)
    places = [place for _, place in loop.items()]
    assert sorted(places) == list(range(10_000))
    moved = [abs(place - at) for at, place in enumerate(places)]
    assert 150 < sum(moved) / len(moved) < 1000


def test_a_large_buffer_is_replayed_at_any_place_in_milliseconds() -> None:
    buffer = replayed(10_000, Done(10**9), 3, KEY)
    assert len(buffer.inside) == 9_999
    assert max(buffer.inside) < buffer.next_read == 10**9 + 9_999
    assert len(set(buffer.inside)) == 9_999
