"""Batches of whole epochs."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_loader.errors import ConfigError
from swift_loader.plan import Plan
from tests.unit.plan.partitions import nb_dropped, nb_padded


def make(n: Any, **options: Any) -> Plan:
    defaults = {"batch_size": 8, "nb_consumer": 2, "shuffle": True, "nearby_shuffle": 40, "seed": 1}
    return Plan(n, **(defaults | options))


def dealt(plan: Plan, epoch: int = 0) -> list[list[list[int]]]:
    """Sample indices by consumer and batch."""
    return [
        [plan.batch(epoch, consumer, k).tolist() for k in range(plan.nb_batches(consumer))]
        for consumer in range(plan.nb_consumer)
    ]


def flat(consumers: list[list[list[int]]]) -> list[int]:
    return list(chain(*chain(*consumers)))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    nb_consumer = draw(st.integers(1, 6))
    tail = draw(st.sampled_from(["balanced", "drop", "pad"]))
    n = draw(st.integers(0, 250))
    if tail == "balanced" and 0 < n < nb_consumer:
        n += nb_consumer
    return make(
        n,
        batch_size=draw(st.integers(1, 17)),
        nb_consumer=nb_consumer,
        shuffle=draw(st.booleans()),
        nearby_shuffle=draw(st.integers(0, 60) | st.integers(128, 400)),
        seed=draw(st.integers(0, 2**64 - 1)),
        tail=tail,
    )


@given(plans(), st.integers(0, 10**6))
def test_every_sample_once_in_equal_steps(plan: Plan, epoch: int) -> None:
    consumers = dealt(plan, epoch)
    steps = {len(batches) for batches in consumers}
    assert len(steps) == 1 or (plan.tail == "balanced" and plan.batch_size == 1)
    indices = flat(consumers)
    everything = set(range(plan.nb_samples))
    assert set(indices) <= everything
    assert len(indices) == plan.nb_samples + nb_padded(plan.partition) - nb_dropped(plan.partition)
    if plan.tail == "balanced":
        assert sorted(indices) == sorted(everything)
    if plan.tail == "drop":
        assert len(set(indices)) == len(indices)
        assert {len(batch) for batch in chain(*consumers)} <= {plan.batch_size}
    if plan.tail == "pad":
        assert set(indices) == everything
        assert len({len(list(chain(*batches))) for batches in consumers}) == 1


@given(plans(), st.integers(0, 50), st.integers(1, 17), st.integers(1, 6))
def test_the_order_does_not_depend_on_who_gets_it(
    plan: Plan, epoch: int, batch_size: int, nb_consumer: int
) -> None:
    if 0 < plan.nb_samples < max(nb_consumer, plan.nb_consumer):
        return
    one = replace(plan, tail="balanced")
    other = replace(one, batch_size=batch_size, nb_consumer=nb_consumer)
    assert flat(dealt(one, epoch)) == flat(dealt(other, epoch))


@given(plans(), st.integers(0, 50))
def test_any_batch_can_be_made_alone_and_again(plan: Plan, epoch: int) -> None:
    consumers = dealt(plan, epoch)
    twin = pickle.loads(pickle.dumps(plan))
    for consumer in reversed(range(plan.nb_consumer)):
        for k in reversed(range(plan.nb_batches(consumer))):
            batch = twin.batch(epoch, consumer, k)
            assert batch.dtype == np.int64
            assert batch.ndim == 1
            assert batch.flags.writeable
            assert batch.tolist() == consumers[consumer][k]


@given(st.integers(20, 2_000), st.sampled_from([0, 5, 200]), st.integers(0, 1_000))
def test_epochs_differ_when_shuffling_only(n: int, window: int, epoch: int) -> None:
    shuffled = make(n, nearby_shuffle=window)
    assert dealt(shuffled, epoch) != dealt(shuffled, epoch + 1)
    assert dealt(shuffled, epoch) != dealt(make(n, nearby_shuffle=window, seed=2), epoch)
    plain = make(n, nearby_shuffle=window, shuffle=False)
    assert flat(dealt(plain, epoch)) == list(range(n))
    assert dealt(plain, epoch) == dealt(plain, epoch + 1)


def test_an_empty_dataset_makes_empty_epochs() -> None:
    for tail in ("balanced", "drop", "pad"):
        assert dealt(make(0, tail=tail)) == [[], []]


def test_fewer_samples_than_consumers_can_be_padded_or_dropped() -> None:
    with pytest.raises(ConfigError, match=r'nb_consumer=5.*\(3\).*tail="pad"'):
        make(3, nb_consumer=5)
    padded = make(3, nb_consumer=5, tail="pad")
    assert [len(batches) for batches in dealt(padded)] == [1] * 5
    assert set(flat(dealt(padded))) == {0, 1, 2}
    assert nb_padded(padded.partition) == 2
    assert dealt(make(3, nb_consumer=5, tail="drop")) == [[]] * 5


def test_crumbs_of_an_interrupted_epoch_come_once() -> None:
    plan = make(100, nb_consumer=5, spans=((7, 8), (50, 52)), shuffle=False)
    assert dealt(plan) == [[[7]], [[50]], [[51]], [], []]
    assert nb_padded(plan.partition) == 0


@given(plans(), st.data())
def test_spans_keep_the_order_of_the_whole_epoch(plan: Plan, data: st.DataObject) -> None:
    if plan.nb_samples == 0:
        return
    whole = replace(plan, nb_consumer=1, tail="balanced")
    indices = flat(dealt(whole, 3))
    bounds = data.draw(st.lists(st.integers(0, plan.nb_samples), unique=True, max_size=8))
    spans = tuple(zip(sorted(bounds)[::2], sorted(bounds)[1::2], strict=False))
    left = replace(plan, spans=spans, tail="balanced")
    expected = [indices[place] for start, stop in spans for place in range(start, stop)]
    found = flat(dealt(left, 3))
    assert found == expected


@pytest.mark.parametrize("window", [0, 1280, 10**8])
@pytest.mark.parametrize("tail", ["balanced", "drop", "pad"])
def test_a_trillion_samples_cost_no_more_than_a_batch(window: int, tail: str) -> None:
    n = 10**12 + 7
    plan = make(n, batch_size=256, nb_consumer=1_000, nearby_shuffle=window, tail=tail)
    last = plan.nb_batches(999) - 1
    assert last >= 10**12 // 256_000 - 1
    tracemalloc.start()
    try:
        batches = [
            plan.batch(4, consumer, k)
            for consumer in (0, 500, 999)
            for k in (0, 1, last // 2, last - 1, last)
        ]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2_000_000
    indices = np.concatenate(batches)
    assert indices.min() >= 0
    assert indices.max() < n
    assert len(np.unique(indices)) >= len(indices) - nb_padded(plan.partition)


def test_neighbouring_consumers_meet_without_overlap_in_a_trillion() -> None:
    n = 10**12 + 1
    plan = make(n, batch_size=3, nb_consumer=7, shuffle=False)
    last = plan.nb_batches(0) - 1
    assert plan.batch(0, 0, 0)[0] == 0
    for consumer in range(6):
        end = plan.batch(0, consumer, last)[-1]
        assert plan.batch(0, consumer + 1, 0)[0] == end + 1
    assert plan.batch(0, 6, last)[-1] == n - 1


def test_seeds_differ_by_seed_epoch_consumer_batch_and_spans() -> None:
    kinds = [
        make(100, seed=1),
        make(100, seed=2),
        make(100, seed=1, spans=((0, 50),)),
        make(100, seed=1, spans=((50, 100),)),
        make(100, seed=1, spans=((0, 25), (50, 75))),
    ]
    seeds = [
        plan.batch_seed(epoch, consumer, k)
        for plan in kinds
        for epoch in range(20)
        for consumer in range(2)
        for k in range(plan.nb_batches(consumer))
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)
    low = {seed % 2**32 for seed in seeds}
    assert len(low) > len(seeds) - 3
    assert make(100).batch_seed(1, 1, 1) == make(100, batch_size=9).batch_seed(1, 1, 1)


def test_batches_that_do_not_exist_are_refused() -> None:
    plan = make(100)
    for consumer, k in ((-1, 0), (2, 0), (0, -1), (0, plan.nb_batches(0))):
        with pytest.raises(IndexError, match="not in"):
            plan.batch(0, consumer, k)
        with pytest.raises(IndexError, match="not in"):
            plan.batch_seed(0, consumer, k)
    with pytest.raises(IndexError, match="consumer 2"):
        plan.nb_batches(2)


@given(plans())
def test_fingerprint_is_json_and_makes_the_same_plan(plan: Plan) -> None:
    left = replace(plan, spans=((0, plan.nb_samples),) if plan.nb_samples else ())
    for each in (plan, left):
        fields: dict[str, Any] = json.loads(json.dumps(each.fingerprint()))
        again = Plan(**fields)
        assert again == each
        assert hash(again) == hash(each)


def test_numpy_integers_are_taken_as_integers() -> None:
    plan = make(np.int64(100), batch_size=np.int32(8), seed=np.uint64(2**63), shuffle=np.True_)
    assert json.loads(json.dumps(plan.fingerprint()))["seed"] == 2**63
    assert plan == make(100, seed=2**63)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": -1}, r"nb_samples=-1 must be an integer in \[0, .*length of the dataset"),
        ({"n": 2**63}, r"nb_samples=\d+ must be an integer in"),
        ({"n": 1.5}, r"nb_samples=1\.5 must be an integer"),
        ({"batch_size": 0}, r"batch_size=0 must be an integer of at least 1; give"),
        ({"batch_size": True}, r"batch_size=True must be an integer"),
        ({"batch_size": "8"}, r"batch_size='8' must be an integer"),
        ({"nb_consumer": 0}, r"nb_consumer=0 must be"),
        ({"nearby_shuffle": -1}, r"nearby_shuffle=-1 must be .* 0 for a full shuffle"),
        ({"seed": -1}, r"seed=-1 must be an integer in"),
        ({"seed": 2**64}, r"seed=\d+ must be an integer in"),
        ({"seed": None}, r"seed=None must be an integer in"),
        ({"shuffle": 1}, r"shuffle=1 must be a bool"),
        ({"tail": "keep"}, r"tail='keep' .*'balanced', 'drop', 'pad'"),
        ({"tail": ["drop"]}, r"tail=\['drop'\]"),
        ({"spans": ((0, 5), (4, 6))}, r"spans=\(4, 6\) does not fit after 5 in \[0, 100\]"),
        ({"spans": ((0, 101),)}, r"spans=\(0, 101\) does not fit"),
        ({"spans": ((3, 3),)}, r"spans=\(3, 3\) does not fit"),
        ({"spans": (1, 2)}, r"spans=\(1, 2\) are not pairs"),
        ({"spans": ((1, 2, 3),)}, r"are not pairs"),
    ],
)
def test_impossible_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**{"n": 100} | options)
