"""The order of batches bounded by tokens, over resumes in a row."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_loader.errors import StateError
from swift_loader.order.budgeted import BudgetedOrder
from swift_loader.order.order import Order
from swift_loader.order.part import Number
from swift_loader.plan.budget import BudgetTable

LENGTHS = np.random.default_rng(2).integers(1, 30, 200)


def order(
    consumers: int, consumer: int, lengths: Any = LENGTHS, tokens: int = 64, seed: int = 5
) -> BudgetedOrder:
    table = BudgetTable(np.asarray(lengths), tokens, "padded")
    return BudgetedOrder.of(table, consumers, consumer, True, seed)


def batches(one: Order, epoch: int) -> list[tuple[Number, list[int]]]:
    return [(n, one.samples(n, details)) for n, details in one.batches(one.part(epoch))]


@given(
    st.lists(st.integers(1, 64), min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12), st.booleans()), max_size=4),
    st.integers(1, 4),
)
@settings(max_examples=100)
def test_resumed_in_a_row_by_any_number_every_sample_comes_once(
    lengths: list[int], resumes: list[tuple[int, int, bool]], last: int
) -> None:
    seen: Counter[int] = Counter()
    states: Any = None
    epoch = 0
    for consumers, steps, one_for_all in [*resumes, (last, 10**6, False)]:
        made = []
        for consumer in range(consumers):
            own: Order = order(consumers, consumer, lengths)
            if states is not None:
                own, epoch = own.resumed(states)
                assert epoch == 0
            taken = own.begin(0)
            for number, samples in batches(own, 0)[:steps]:
                assert len(samples) * max(lengths[sample] for sample in samples) <= 64
                seen.update(samples)
                taken.add(number.k)
            made.append(own.capture(taken))
        equal = len({state["delivered"] for state in made}) == 1
        states = made[0] if one_for_all and equal else made
    assert seen == Counter(range(len(lengths)))


def test_the_same_set_up_goes_on_with_the_same_batches() -> None:
    whole = batches(order(2, 1), 3)
    one = order(2, 1)
    taken = one.begin(3)
    for number, _ in whole[:7]:
        taken.add(number.k)
    rest, epoch = order(2, 1).resumed(one.capture(taken))
    assert epoch == 3
    assert batches(rest, 3) == [(number._replace(plan_id=1), got) for number, got in whole[7:]]
    assert batches(rest, 4) == batches(order(2, 1), 4)


@given(st.lists(st.sampled_from([1, 20, 40, 64]), min_size=1, max_size=60), st.integers(1, 6))
@settings(max_examples=100)
def test_all_make_equally_many_steps_in_every_epoch(lengths: list[int], consumers: int) -> None:
    orders = [order(consumers, consumer, lengths) for consumer in range(consumers)]
    most, fewest = orders[0].steps_of_all()
    for epoch in range(3):
        steps = [len(one.part(epoch)) for one in orders]
        assert steps == sorted(steps, reverse=True)
        assert (steps[0], steps[-1]) == (most, fewest)
    if most != fewest:
        assert sum(steps) == len(lengths)


def old_state(one: BudgetedOrder, steps: int) -> dict[str, Any]:
    """As it was written before consumers took over steps of others."""
    taken = one.begin(0)
    for number in range(steps):
        taken.add(number)
    state = one.capture(taken)
    del state["budget"]["deal"]
    return state


def test_an_old_state_is_refused_where_batches_are_dealt_in_another_way_since() -> None:
    one = order(3, 0, [20, 20, 20])  # one batch, which all consumers have a part of
    with pytest.raises(StateError, match="dealt in another way since"):
        one.resumed(old_state(one, 1))
    assert one.resumed(old_state(one, 0))[1] == 0


def test_an_old_state_goes_on_where_batches_are_dealt_as_before() -> None:
    one = order(3, 1)
    rest, _ = one.resumed(old_state(one, 4))
    assert [samples for _, samples in batches(rest, 0)] == [
        samples for _, samples in batches(one, 0)[4:]
    ]


def test_a_rest_has_seeds_of_its_own() -> None:
    one = order(2, 0)
    taken = one.begin(0)
    taken.add(0)
    rest, _ = order(3, 0).resumed(one.capture(taken))
    assert rest.plans()[1].batch_seed(0, 0, 0) != rest.plans()[0].batch_seed(0, 0, 0)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"tokens": 65}, "tokens was 64, is now 65"),
        ({"seed": 6}, "seed was 5, is now 6"),
        ({"lengths": LENGTHS[::-1]}, "lengths was"),
        ({"lengths": LENGTHS[1:]}, "nb_samples was 200, is now 199"),
    ],
)
def test_a_state_of_another_run_is_refused(other: dict[str, Any], words: str) -> None:
    one = order(2, 0)
    taken = one.begin(0)
    taken.add(0)
    with pytest.raises(StateError, match=words):
        order(2, 0, **other).resumed(one.capture(taken))


@pytest.mark.parametrize(
    "change",
    [
        {"budget": None},
        {"budget": {"spans": 3}},
        {"spans": [[0, 10**9]]},
        {"spans": [[3, 2]]},
        {"spans": [3]},
        {"spans": "all"},
        {"parts": [[0, 0, 99]]},
        {"parts": [[10**9, 0, 1]]},
        {"parts": [[0, True, 1]]},
        {"tokens": "64"},
        {"deal": 3},
        {"deal": "2"},
    ],
)
def test_a_mutated_state_is_refused(change: dict[str, Any]) -> None:
    one = order(2, 0)
    taken = one.begin(0)
    taken.add(0)
    state = one.capture(taken)
    if "budget" in change:
        state.update(change)
    else:
        state["budget"].update(change)
    with pytest.raises(StateError):
        order(2, 0).resumed(state)
