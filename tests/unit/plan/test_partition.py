"""Parts and batches of a stream."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from swift_loader.plan.partition import (
    Partition,
    PartitionBySteps,
    Stream,
    complement,
    joined,
)
from tests.unit.plan.partitions import nb_dropped, nb_padded

PARTITIONS = st.builds(
    Partition,
    nb_positions=st.integers(0, 300),
    nb_consumer=st.integers(1, 9),
    batch_size=st.integers(1, 20),
    tail=st.sampled_from(["balanced", "drop", "pad"]),
)
BY_STEPS = PARTITIONS.map(
    lambda parts: PartitionBySteps(
        parts.nb_positions, parts.nb_consumer, parts.batch_size, parts.tail
    )
)
HUGE = st.builds(
    Partition,
    nb_positions=st.integers(10**9, 10**12),
    nb_consumer=st.integers(1, 5_000),
    batch_size=st.integers(1, 10_000),
    tail=st.sampled_from(["balanced", "drop", "pad"]),
)


def places(partition: Partition, consumer: int, first: int, last: int) -> list[int]:
    segments = partition.segments(consumer, first, last)
    return [place for start, stop in segments for place in range(start, stop)]


def batches(partition: Partition, consumer: int) -> list[list[int]]:
    return [places(partition, consumer, k, k + 1) for k in range(partition.nb_batches(consumer))]


@given(PARTITIONS)
def test_balanced_deals_out_every_place_once(partition: Partition) -> None:
    parts = [list(chain(*batches(partition, c))) for c in range(partition.nb_consumer)]
    dealt = sorted(chain(*parts))
    if partition.tail == "balanced":
        assert dealt == list(range(partition.nb_positions))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert nb_padded(partition) == nb_dropped(partition) == 0
    elif partition.tail == "drop":
        assert len(set(dealt)) == len(dealt) == partition.nb_positions - nb_dropped(partition)
        assert nb_dropped(partition) < partition.nb_consumer * (partition.batch_size + 1)
    else:
        assert set(dealt) == set(range(partition.nb_positions))
        assert len(dealt) == partition.nb_positions + nb_padded(partition)
        assert len({len(part) for part in parts}) == 1
        assert nb_padded(partition) < partition.nb_consumer


@given(PARTITIONS)
def test_every_batch_has_samples_and_only_the_last_two_are_not_full(partition: Partition) -> None:
    for consumer in range(partition.nb_consumer):
        sizes = [len(batch) for batch in batches(partition, consumer)]
        full = partition.batch_size
        assert all(size >= 1 for size in sizes)
        if partition.tail == "drop":
            assert all(size == full for size in sizes)
        else:
            assert all(size == full for size in sizes[:-2])
            assert sizes[-2:-1] in ([], [full]) or sizes[-2:] == [full - 1, 1]
            assert all(size <= full for size in sizes)


@given(PARTITIONS | BY_STEPS, st.data())
def test_several_batches_at_once_are_the_batches_one_by_one(
    partition: Partition, data: st.DataObject
) -> None:
    consumer = data.draw(st.integers(0, partition.nb_consumer - 1))
    first = data.draw(st.integers(0, partition.nb_batches(consumer)))
    last = data.draw(st.integers(first, partition.nb_batches(consumer)))
    assert places(partition, consumer, first, last) == list(
        chain(*batches(partition, consumer)[first:last])
    )


@given(BY_STEPS)
def test_steps_go_through_the_stream_from_its_beginning(partition: PartitionBySteps) -> None:
    consumers = range(partition.nb_consumer)
    dealt = [
        place
        for k in range(partition.nb_batches(0))
        for consumer in consumers
        if k < partition.nb_batches(consumer)
        for place in places(partition, consumer, k, k + 1)
    ]
    assert dealt == [place % partition.nb_positions for place in range(len(dealt))]


@given(HUGE)
def test_huge_parts_touch_without_overlap(partition: Partition) -> None:
    assert partition.nb_batches(0) > 0 or partition.tail == "drop"
    parts = [
        partition.segments(consumer, 0, partition.nb_batches(consumer))
        for consumer in range(partition.nb_consumer)
    ]
    dealt = sum(stop - start for part in parts for start, stop in part)
    assert dealt == partition.nb_positions + nb_padded(partition) - nb_dropped(partition)
    if partition.tail == "balanced":
        assert parts[0][0][0] == 0
        assert parts[-1][0][1] == partition.nb_positions
        assert all(left[0][1] == right[0][0] for left, right in pairwise(parts))


def test_balanced_is_as_even_as_it_can_be_in_all_small_cases() -> None:
    for nb_consumer in range(1, 6):
        for batch_size in range(1, 7):
            for n in range(3 * nb_consumer * batch_size + 2):
                partition = Partition(n, nb_consumer, batch_size, "balanced")
                dealt = [[len(b) for b in batches(partition, c)] for c in range(nb_consumer)]
                steps = -(-n // (nb_consumer * batch_size))
                assert sorted(
                    chain(*(chain(*batches(partition, c)) for c in range(nb_consumer)))
                ) == [*range(n)]
                assert all(1 <= size <= batch_size for sizes in dealt for size in sizes)
                counts = [len(sizes) for sizes in dealt]
                assert max(counts) == counts[0] == steps  # no consumer makes a step too many
                if n >= steps * nb_consumer:  # a sample for each in each step
                    assert set(counts) == {steps}
                else:  # nobody can make them equal
                    assert batch_size == 1 or n < nb_consumer
                    assert sum(counts) == n
                # Before the last step a place is missing only for a last batch that had none.
                missing = sum(batch_size - size for sizes in dealt for size in sizes[:-1])
                of_last = n - (steps - 1) * nb_consumer * batch_size
                lacking = max(0, nb_consumer - of_last) if set(counts) == {steps} else 0
                assert missing == (lacking if steps > 1 else 0)
                for step in zip(*dealt, strict=False):
                    assert max(step) - min(step) <= 1


def test_the_shorter_part_splits_its_last_full_batch() -> None:
    # 101 samples over 2 consumers: 51 need three batches of 25, so 50 make three too.
    partition = Partition(101, 2, 25, "balanced")
    assert [len(batch) for batch in batches(partition, 0)] == [25, 25, 1]
    assert [len(batch) for batch in batches(partition, 1)] == [25, 24, 1]


def test_batches_of_one_stay_so_and_a_consumer_ends_a_step_earlier() -> None:
    partition = Partition(5, 2, 1, "balanced")
    assert batches(partition, 0) == [[0], [1], [2]]
    assert batches(partition, 1) == [[3], [4]]


def test_fewer_places_than_consumers_come_once() -> None:
    partition = Partition(1, 3, 4, "balanced")
    assert [batches(partition, c) for c in range(3)] == [[[0]], [], []]


def test_padding_wraps_round_even_with_fewer_places_than_consumers() -> None:
    partition = Partition(3, 7, 4, "pad")
    assert [batches(partition, c) for c in range(7)] == [[[c % 3]] for c in range(7)]


@given(PARTITIONS | BY_STEPS)
def test_last_batches_of_all_end_in_what_is_repeated(partition: Partition) -> None:
    partition = replace(partition, tail="pad")
    assert partition.nb_repeated == nb_padded(partition)
    dealt = [batches(partition, c) for c in range(partition.nb_consumer)]
    before = list(chain(*chain(*(part[:-1] for part in dealt))))
    last = list(chain(*chain(*(part[-1:] for part in dealt))))
    once = last[: len(last) - partition.nb_repeated]
    assert sorted(before + once) == list(range(partition.nb_positions))


@given(st.integers(0, 60), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))))
def test_complement_is_what_no_interval_covers(length: int, pairs: list[tuple[int, int]]) -> None:
    intervals = [(min(pair), min(max(pair), length)) for pair in pairs if min(pair) <= length]
    covered = {place for start, stop in intervals for place in range(start, stop)}
    gaps = complement(length, intervals)
    found = [place for start, stop in gaps for place in range(start, stop)]
    assert found == [place for place in range(length) if place not in covered]
    assert all(start < stop for start, stop in gaps)


@given(st.sets(st.integers(0, 100)), st.data())
def test_places_of_a_stream_lead_to_its_spans(positions: set[int], data: st.DataObject) -> None:
    ascending = sorted(positions)
    spans = joined([(position, position + 1) for position in ascending])
    assert all(left[1] < right[0] for left, right in pairwise(spans))
    stream = Stream(spans)
    assert len(stream) == len(ascending)
    start = data.draw(st.integers(0, len(ascending)))
    stop = data.draw(st.integers(start, len(ascending)))
    found = stream.positions(start, stop)
    assert [place for first, last in found for place in range(first, last)] == ascending[start:stop]
