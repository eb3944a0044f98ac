"""Batches bounded by tokens, and how they are dealt out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    positions = [table.batch_at(at, shuffle, 7, epoch) for at in range(table.nb_batches)]
    assert sorted(positions) == list(range(table.nb_batches))
    for batch in positions:
        samples = table.samples(batch, shuffle, 7, epoch).tolist()
        assert len(samples) == table.size(batch)
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


sizes = st.lists(st.integers(1, 9), max_size=30)
runs = st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1)), min_size=1, max_size=4)


@given(sizes, runs, st.data())
@settings(max_examples=300)
def test_what_is_left_is_dealt_again_exactly_once(
    of_batches: list[int], resumes: list[tuple[int, float]], data: st.DataObject
) -> None:
    whole = ((0, len(of_batches)),) if of_batches else ()
    deal = Deal(whole, (), resumes[0][0], of_batches.__getitem__)
    seen: list[tuple[int, int]] = []

    def take(part: Part) -> None:
        assert part.start < part.stop <= of_batches[part.position]
        seen.extend((part.position, sample) for sample in range(part.start, part.stop))

    for nb_consumer, share in resumes:
        deal = deal.among(nb_consumer)
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


@given(st.lists(st.integers(2, 9), min_size=1, max_size=40), st.integers(1, 8))
@settings(max_examples=200)
def test_steps_are_equal_where_batches_can_be_split(
    of_batches: list[int], nb_consumer: int
) -> None:
    if sum(of_batches) < nb_consumer:
        return
    deal = Deal(((0, len(of_batches)),), (), nb_consumer, of_batches.__getitem__)
    assert len({deal.nb_steps(consumer) for consumer in range(nb_consumer)}) == 1
