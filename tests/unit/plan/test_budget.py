"""Batches bounded by tokens, and how they are dealt out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from swift_loader.plan.budget import BudgetTable, Cost
from swift_loader.plan.deal import Deal, Part

lengths_and_budget = st.integers(1, 60).flatmap(
    lambda budget: st.tuples(st.lists(st.integers(0, budget), max_size=80), st.just(budget))
)
costs: Any = st.sampled_from(["padded", "sum"])


def cost_of(lengths: list[int], cost: Cost) -> int:
    counted = [max(1, length) for length in lengths]
    return max(counted) * len(counted) if cost == "padded" else sum(counted)


@given(lengths_and_budget, costs, st.booleans(), st.integers(0, 3))
@settings(max_examples=200)
def test_every_sample_comes_once_and_no_batch_costs_more(
    given_: tuple[list[int], int], cost: Cost, shuffle: bool, epoch: int
) -> None:
    lengths, budget = given_
    table = BudgetTable(np.array(lengths, np.int32), budget, cost)
    seen: list[int] = []
    for at in range(table.nb_batches):
        [batch] = table.batches(at, at + 1, shuffle, 7, epoch).tolist()
        samples = table.samples(batch, shuffle, 7, epoch).tolist()
        assert len(samples) == table.size(batch) == table.sizes(at, at + 1, shuffle, 7, epoch)
        assert cost_of([lengths[sample] for sample in samples], cost) <= budget
        seen += samples
    assert sorted(seen) == list(range(len(lengths)))


@given(lengths_and_budget, costs)
@settings(max_examples=150)
def test_batches_are_as_large_as_a_plain_loop_makes_them(
    given_: tuple[list[int], int], cost: Cost
) -> None:
    lengths, budget = given_
    table = BudgetTable(np.array(lengths, np.int32), budget, cost)
    want: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        if want and cost_of([*want[-1], length], cost) <= budget:
            want[-1].append(length)
        else:
            want.append([length])
    assert [table.size(batch) for batch in range(table.nb_batches)] == list(map(len, want))


def test_epochs_mix_samples_of_one_length() -> None:
    table = BudgetTable(np.full(1000, 8), 64, "padded")
    first, second = ({tuple(table.samples(k, True, 0, e)) for k in range(125)} for e in range(2))
    assert len(first & second) < 5


def test_similar_lengths_come_together() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 5000)
    table = BudgetTable(lengths, 4096, "padded")
    cost = sum(
        int(lengths[table.samples(k, True, 0, 0)].max()) * table.size(k)
        for k in range(table.nb_batches)
    )
    assert cost < 1.02 * lengths.sum()
    assert table.nb_batches * 4096 < 1.08 * lengths.sum()  # rounded down to whole samples


@pytest.mark.parametrize(("lengths", "words"), [([3, 9], "sample 1 has 9"), ([1, -1], "sample 1")])
def test_lengths_that_can_not_be_are_named(lengths: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BudgetTable(np.array(lengths), 8, "padded")


def dealt(of_batches: list[int], nb_consumer: int) -> Deal:
    sizes = np.array(of_batches, np.int64)
    whole = ((0, len(sizes)),) if of_batches else ()
    return Deal(
        whole, (), nb_consumer, lambda start, stop: sizes[start:stop], set(of_batches) == {1}
    )


def check_steps(deal: Deal, nb_samples: int) -> None:
    """All consumers make equally many, unless all that there is are single samples."""
    steps = [deal.nb_steps(consumer) for consumer in range(deal.nb_consumer)]
    assert steps == sorted(steps, reverse=True)
    if steps[0] != steps[-1]:
        assert sum(steps) == nb_samples
        assert steps[0] == steps[-1] + 1


sizes = st.lists(st.integers(1, 9), max_size=30)
runs = st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1)), min_size=1, max_size=4)


@given(sizes, runs, st.data())
@settings(max_examples=300)
def test_what_is_left_is_dealt_again_exactly_once(
    of_batches: list[int], resumes: list[tuple[int, float]], data: st.DataObject
) -> None:
    deal = dealt(of_batches, resumes[0][0])
    seen: list[tuple[int, int]] = []

    def take(part: Part) -> None:
        assert part.start < part.stop <= of_batches[part.position]
        seen.extend((part.position, sample) for sample in range(part.start, part.stop))

    for nb_consumer, share in resumes:
        deal = deal.among(nb_consumer)
        check_steps(deal, sum(of_batches) - len(seen))
        taken = []
        for consumer in range(nb_consumer):
            steps = int(share * deal.nb_steps(consumer))
            beyond = data.draw(st.sets(st.integers(steps + 1, max(steps + 1, steps + 3))))
            beyond = {step for step in beyond if step < deal.nb_steps(consumer)}
            for step in [*range(steps), *beyond]:
                take(deal.part(consumer, step))
            taken.append((consumer, steps, tuple(sorted(beyond))))
        deal = deal.without(taken)
    for consumer in range(deal.nb_consumer):
        for step in range(deal.nb_steps(consumer)):
            take(deal.part(consumer, step))
    assert sorted(seen) == [
        (position, sample) for position, size in enumerate(of_batches) for sample in range(size)
    ]


@given(st.lists(st.integers(1, 9), max_size=40), st.integers(1, 12))
@settings(max_examples=300)
def test_steps_are_equal_where_any_batch_can_be_split(
    of_batches: list[int], nb_consumer: int
) -> None:
    check_steps(dealt(of_batches, nb_consumer), sum(of_batches))


def test_a_consumer_of_single_samples_takes_steps_over() -> None:
    deal = dealt([2, 1, 2, 1, 1, 1, 1], 4)
    parts = [[deal.part(consumer, step) for step in range(2)] for consumer in range(4)]
    assert deal.takes_over
    assert parts == [
        [Part(0, 0, 1), Part(0, 1, 2)],
        [Part(1, 0, 1), Part(2, 0, 2)],
        [Part(3, 0, 1), Part(4, 0, 1)],
        [Part(5, 0, 1), Part(6, 0, 1)],
    ]


def test_large_batches_are_cut_into_pieces_that_are_alike() -> None:
    deal = dealt([7, 2, 1], 6)
    parts = [deal.part(consumer, 0) for consumer in range(6)]
    assert [part.stop - part.start for part in parts] == [2, 2, 2, 1, 2, 1]


def test_a_batch_of_its_own_is_what_a_consumer_cuts() -> None:
    deal = dealt([9, 2, 1, 1, 3], 2)
    assert not deal.takes_over
    assert [deal.part(1, step) for step in range(3)] == [
        *(Part(3, 0, 1), Part(4, 0, 2), Part(4, 2, 3)),
    ]


def test_only_as_many_sizes_are_looked_up_as_it_takes() -> None:
    looked_up = 0

    def sizes(start: int, stop: int) -> NDArray[np.int64]:
        nonlocal looked_up
        looked_up += stop - start
        return np.full(stop - start, 3)

    deal = Deal(((0, 10**9 + 1),), (), 8, sizes)
    assert deal.part(7, deal.nb_steps(7) - 1) == Part(10**9, 2, 3)
    deal.without([(consumer, 10**7, ()) for consumer in range(8)])
    assert looked_up < 100
