"""Streams of shards over resumes in a row, by workers' lanes without processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_loader.errors import ConfigError, StateError
from swift_loader.order.order import Order
from swift_loader.order.part import UNKNOWN
from swift_loader.order.sharded import ShardedOrder
from swift_loader.plan.shards import ShardDeal
from swift_loader.sources.shards import Shards
from swift_loader.worker.lane import Lane
from swift_loader.worker.place import Place
from swift_loader.worker.split import Split


class Sized:
    """Opens shards of these sizes; counts the items that it gives."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.given = 0

    def read(self, shard: int, start: int) -> Iterator[tuple[int, int]]:
        for place in range(start, self.sizes[shard]):
            self.given += 1
            yield shard, place

    def seeking(self, shard: int, start: int = 0) -> Iterator[tuple[int, int]]:
        return self.read(shard, start)

    def through(self, shard: int) -> Iterator[tuple[int, int]]:
        return self.read(shard, 0)


def lane_of(shards: Shards, consumers: int, consumer: int, workers: int, worker: int) -> Lane:
    place = Place(consumer, consumers, workers, 0, None, stream_split="ranks")
    return Lane(shards, Split(place, worker), place, worker)


def order_of(shards: Shards, consumers: int, consumer: int, workers: int, shuffle: bool) -> Order:
    listed = shards.listed()
    deal = ShardDeal(listed.count, consumers, workers, shuffle, 3, listed.buffer)
    return ShardedOrder.of(deal, listed.digest, consumer, 2, "balanced")


def run(
    shards: Shards, order: Order, consumers: int, consumer: int, workers: int, steps: int
) -> tuple[list[Any], dict[str, Any]]:
    """Batches of 2 of one consumer in turn from its workers, `steps` at most, and the state."""
    epoch = 0
    part = order.part(epoch)
    taken = order.begin(epoch)
    plan = order.plans()[part.plan_id]
    lanes: dict[int, Lane] = {}
    ended: set[int] = set()
    seen = []
    made: dict[int, int] = {}
    if part.count == UNKNOWN:
        for number, details in order.batches(part):
            if len(ended) == workers or not steps:
                break
            worker = number.k % workers
            if worker not in lanes:
                lanes[worker] = lane_of(shards, consumers, consumer, workers, worker)
                saved = json.loads(details) if details else None
                made[worker] = saved["batch"] if saved else 0
                lanes[worker].begin(epoch, plan, saved)
                while made[worker] < number.k // workers:  # none of its state was saved
                    if not [item for _, item in zip(range(2), lanes[worker], strict=False)]:
                        break
                    made[worker] += 1
            batch = [item for _, item in zip(range(2), lanes[worker], strict=False)]
            if not batch:
                ended.add(worker)
                continue
            made[worker] += 1
            seen += batch
            taken.add(number.k)
            taken.shards[worker] = lanes[worker].state(made[worker])
            steps -= 1
    state: dict[str, Any] = json.loads(json.dumps(order.capture(taken)))
    return seen, state


runs = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 6)), min_size=0, max_size=4
)


@given(
    st.lists(st.integers(0, 8), max_size=9), st.sampled_from([0, 3, 20]), runs, st.booleans(),
    st.booleans(), st.tuples(st.integers(1, 3), st.integers(1, 3)),
)  # fmt: skip
@settings(max_examples=120)
def test_resumed_in_a_row_by_any_number_each_item_comes_once(
    sizes: list[int], buffer: int, resumes: Any, shuffle: bool, seeks: bool, last: tuple[int, int]
) -> None:
    opened = Sized(sizes)
    shards = Shards(range(len(sizes)), opened.seeking if seeks else opened.through, buffer=buffer)
    seen: Counter[Any] = Counter()
    states: Any = None
    for consumers, workers, steps in [*resumes, (*last, 10**6)]:
        new = []
        for consumer in range(consumers):
            order = order_of(shards, consumers, consumer, workers, shuffle)
            if states is not None:
                order, epoch = order.resumed(states)
                assert epoch == 0
            items, state = run(shards, order, consumers, consumer, workers, steps)
            seen.update(items)
            new.append(state)
        states = new
    assert seen == Counter((shard, at) for shard, n in enumerate(sizes) for at in range(n))


def test_the_same_set_up_goes_on_with_the_same_items() -> None:
    shards = Shards(range(9), Sized([7] * 9).seeking, buffer=5)
    whole, _ = run(shards, order_of(shards, 2, 1, 2, True), 2, 1, 2, 10**6)
    first, state = run(shards, order_of(shards, 2, 1, 2, True), 2, 1, 2, 6)
    resumed, _ = order_of(shards, 2, 1, 2, True).resumed(state)
    rest, _ = run(shards, resumed, 2, 1, 2, 10**6)
    assert first + rest == whole


def test_a_reader_that_seeks_reads_only_what_is_left() -> None:
    opened = Sized([1000])
    shards = Shards([0], opened.seeking, buffer=10)
    _, state = run(shards, order_of(shards, 1, 0, 1, True), 1, 0, 1, 300)
    opened.given = 0
    resumed, _ = order_of(shards, 1, 0, 1, True).resumed(state)
    rest, _ = run(shards, resumed, 1, 0, 1, 10**6)
    assert len(rest) == 400
    assert opened.given <= 400 + 100  # what was in the buffer lies a little before


def test_the_log_says_how_long_reading_through_took() -> None:
    said: list[str] = []
    shards = Shards(["a.tar"], lambda shard: iter(range(50)))
    assert list(shards.items(0, 48, said.append)) == [48, 49]
    [line] = said
    assert line.startswith("shard 'a.tar' was read through to item 48 in 0.")
    assert list(shards.items(0, 50)) == []
    with pytest.raises(StateError, match=r"'a\.tar' ends before item 60"):
        shards.items(0, 60)


# One that seeks and has no buffer gives nothing from there on, which is all that there is.
@pytest.mark.parametrize(("buffer", "seeks"), [(0, False), (5, False), (5, True)])
@pytest.mark.parametrize("consumers", [1, 2])
def test_shards_that_are_shorter_than_they_were_are_said(
    buffer: int, seeks: bool, consumers: int
) -> None:
    opened = Sized([40] * 4)
    shards = Shards(range(4), opened.seeking if seeks else opened.through, buffer=buffer)
    _, state = run(shards, order_of(shards, 1, 0, 1, True), 1, 0, 1, 8)
    opened.sizes[:] = [10] * 4
    order, _ = order_of(shards, consumers, 0, 1, True).resumed([state])
    with pytest.raises(StateError, match="it is shorter than it was"):
        run(shards, order, consumers, 0, 1, 10**6)


def test_more_items_than_there_ever_were_are_refused() -> None:
    shards = Shards(range(4), Sized([40] * 4).seeking, buffer=5)
    _, state = run(shards, order_of(shards, 1, 0, 1, True), 1, 0, 1, 8)
    state["lanes"]["0"].update(left=2**31)
    order, _ = order_of(shards, 1, 0, 1, True).resumed(state)
    with pytest.raises(StateError, match="it is shorter than it was"):
        run(shards, order, 1, 0, 1, 10**6)


class Broken:
    """Raises for some items; seeks."""

    def __init__(self, bad: set[int], after: int = 30) -> None:
        self.bad = bad

    def __call__(self, shard: int, start: int = 0) -> Iterator[int]:
        for place in range(start, 30):
            if place in self.bad:
                raise ValueError(f"item {place}")
            yield place


def caught(lane: Lane) -> tuple[list[int], list[str]]:
    items, errors = [], []
    while True:
        try:
            items.append(next(lane))
        except StopIteration:
            return items, errors
        except ValueError as error:
            errors.append(str(error))


@pytest.mark.parametrize("buffer", [0, 4])
def test_an_item_that_raises_costs_only_itself(buffer: int) -> None:
    shards = Shards([0], Broken({4, 5, 17}), buffer=buffer)
    lane = lane_of(shards, 1, 0, 1, 0)
    lane.begin(0, order_of(shards, 1, 0, 1, True).plans()[0], None)
    items, errors = caught(lane)
    assert sorted(items) == sorted(set(range(30)) - {4, 5, 17})
    assert sorted(errors) == ["item 17", "item 4", "item 5"]


def test_a_shard_that_only_raises_is_given_up() -> None:
    shards = Shards([0, 1], Broken(set(range(30))))
    lane = lane_of(shards, 1, 0, 1, 0)
    lane.begin(0, order_of(shards, 1, 0, 1, False).plans()[0], None)
    items, errors = caught(lane)
    assert not items
    assert len(errors) == 2 * 16


def test_one_state_of_several_is_not_enough_for_another_set_up() -> None:
    shards = Shards(range(9), Sized([7] * 9).seeking)
    _, state = run(shards, order_of(shards, 2, 1, 2, True), 2, 1, 2, 3)
    with pytest.raises(StateError, match="give the list of the states of all consumers"):
        order_of(shards, 3, 1, 2, True).resumed(state)


def test_other_shards_are_refused_by_name() -> None:
    shards = Shards(range(9), Sized([7] * 9).seeking)
    _, state = run(shards, order_of(shards, 1, 0, 2, True), 1, 0, 2, 3)
    for others, words in ((range(8), "count was 9, is now 8"), (range(1, 10), "digest was")):
        with pytest.raises(StateError, match=words):
            order_of(Shards(others, Sized([7] * 9).seeking), 1, 0, 2, True).resumed(state)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"open": "tar"}, "a function that opens a shard"),
        ({"buffer": -1}, "a number of items"),
        ({"buffer": True}, "a number of items"),
    ],
)
def test_what_can_not_work_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Shards(**{"shards": [1], "open": iter, **arguments})
