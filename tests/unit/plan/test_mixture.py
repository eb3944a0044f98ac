"""A mixture's plan: exact rounds, exact shares, and nothing that grows with the samples."""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from swift_loader import ConfigError
from swift_loader.plan import Plan, shuffle
from tests.unit.plan.mixtures import Run, plan_of, told
from tests.unit.plan.partitions import nb_dropped, nb_padded

NAMES = ("web", "code", "books", "mail", "notes")


@st.composite
def mixtures(draw: st.DrawFn) -> dict[str, Any]:
    names = NAMES[: draw(st.integers(1, 5))]
    weights = {name: draw(st.sampled_from([0.01, 0.2, 1.0, 3.0, 5.5])) for name in names}
    return {
        "lengths": {name: draw(st.integers(1, 60)) for name in names},
        "weights": weights,
        "nb_consumer": draw(st.integers(1, 4)),
        "batch_size": draw(st.integers(1, 6)),
        "shuffle": draw(st.booleans()),
    }


def rounds_are_whole(seen: list[tuple[str, int]], lengths: dict[str, int]) -> bool:
    """Whether nothing of a source came again before the rest of it had come."""
    for name, length in lengths.items():
        counts = Counter(sample for source, sample in seen if source == name)
        often = [counts.get(sample, 0) for sample in range(length)]
        if max(often) - min(often) > 1:
            return False
    return True


def shares_are_right(seen: list[tuple[str, int]], weights: dict[str, float]) -> bool:
    counts = Counter(source for source, _ in seen)
    return all(
        abs(counts[name] - len(seen) * weight / sum(weights.values())) < 3
        for name, weight in weights.items()
    )


@given(mixtures(), st.sampled_from(["balanced", "drop", "pad"]), st.integers(1, 120))
@settings(max_examples=60)
def test_every_source_goes_round_by_itself_in_its_share(
    given_: dict[str, Any], tail: str, samples: int
) -> None:
    assume(samples >= given_["nb_consumer"])
    plan = plan_of(**given_, tail=tail, samples_per_epoch=samples)
    run = Run(plan)
    for _ in range(3):
        while run.step():
            assert rounds_are_whole(run.seen, given_["lengths"])
        assert shares_are_right(run.seen, given_["weights"])
    assert len(run.seen) == 3 * plan.nb_samples
    if given_["batch_size"] > 1:
        assert plan.nb_batches(0) == plan.nb_batches(plan.nb_consumer - 1)


@given(mixtures())
@settings(max_examples=40)
def test_drop_gives_each_sample_once_an_epoch(given_: dict[str, Any]) -> None:
    assume(sum(given_["lengths"].values()) >= given_["nb_consumer"])
    run = Run(plan_of(**given_, exhausted="drop"))
    everything = [(name, i) for name, n in given_["lengths"].items() for i in range(n)]
    for _ in range(2):
        run.seen.clear()
        while run.step():
            pass
        assert sorted(run.seen) == sorted(everything)


@given(mixtures())
@settings(max_examples=40)
def test_stop_ends_with_the_first_source_that_is_through(given_: dict[str, Any]) -> None:
    try:
        run = Run(plan_of(**given_, exhausted="stop"))
    except ConfigError:
        assume(False)
    while run.step():
        pass
    counts = Counter(source for source, _ in run.seen)
    assert any(counts[name] == length for name, length in given_["lengths"].items())
    assert all(counts[name] <= length for name, length in given_["lengths"].items())
    assert rounds_are_whole(run.seen, given_["lengths"])


def test_batches_of_one_source_have_its_own_size() -> None:
    sizes = {"web": 5, "code": 3}
    plan = plan_of(
        {"web": 50, "code": 20},
        weights={"web": 2, "code": 1},
        mix="batch",
        batch_sizes=sizes,
        nb_consumer=2,
    )
    run = Run(plan)
    sources = []
    for _ in range(3):
        while True:
            batches = [run.take(consumer) for consumer in range(2)]
            if None in batches:
                break
            for batch in batches:
                assert batch is not None
                [source] = {name for name, _ in batch}
                assert len(batch) == sizes[source]
                sources.append(source)
        run.step()
    assert abs(sources.count("web") - 2 * sources.count("code")) <= 2
    assert rounds_are_whole(run.seen, {"web": 50, "code": 20})


def test_a_step_of_all_consumers_is_a_stretch_of_the_mixture() -> None:
    lengths = {"web": 400, "code": 300}
    weights = {"web": 3, "code": 1}
    one = Run(plan_of(lengths, weights=weights, batch_size=12))
    many = Run(plan_of(lengths, weights=weights, batch_size=4, nb_consumer=3))
    for _ in range(130):
        one.step()
        many.step()
        assert one.seen == many.seen


@pytest.mark.parametrize("kind", [{}, {"mix": "batch", "batch_sizes": {"code": 7}}], ids=str)
@given(
    nb_consumer=st.integers(1, 5),
    tail=st.sampled_from(["balanced", "drop", "pad"]),
    table=st.lists(st.integers(0, 20), max_size=2, unique=True).map(sorted),
    left_over=st.integers(0, 3),
    bounds=st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted),
)
@settings(max_examples=60)
def test_several_batches_at_once_are_those_one_by_one(
    kind: dict[str, Any],
    nb_consumer: int,
    tail: str,
    table: list[int],
    left_over: int,
    bounds: list[int],
) -> None:
    """Their samples, and how many are of each source."""
    lengths = {"web": 37, "code": 12, "books": 5}
    rows = [{"web": 3, "code": 2, "books": 1}, {"web": 1, "code": 0, "books": 1}]
    weights = [(step, rows[number % 2]) for number, step in enumerate(sorted({0, *table}))]
    plan = plan_of(
        lengths, nb_consumer=nb_consumer, tail=tail, weights=weights, samples_per_epoch=300, **kind
    )
    run = Run(plan)
    for _ in range(left_over):  # the others are behind
        run.take(0)
    run.resume(plan, by_one=False)
    for resumed, epoch in ((plan, 0), (plan, 1), (run.plan, 0)):
        for consumer in range(nb_consumer):
            count = resumed.nb_batches(consumer)
            first, last = (min(bound, count) for bound in bounds)
            if first == last:
                continue
            each = [resumed.batch(epoch, consumer, k) for k in range(first, last)]
            together = resumed.batches(epoch, consumer, first, last).tolist()
            assert together == np.concatenate(each).tolist()
            sources = Counter(source for source, _ in told(resumed, together))
            assert resumed.samples_by_source(epoch, consumer, first, last) == [
                sources[name] for name in lengths
            ]


def test_many_sources_keep_what_their_next_samples_are_worked_out_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has a shuffle of its own, and is asked in turn with all others."""
    asked = 0
    bijection = shuffle.bijection

    def counted(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return bijection(*arguments)

    monkeypatch.setattr(shuffle, "bijection", counted)
    lengths = {str(number): 100_000 + number for number in range(100)}
    plan = plan_of(lengths, nearby_shuffle=8192)
    for k in range(20):
        plan.batches(0, 0, 100 * k, 100 * k + 100)
    assert asked < 2.5 * len(lengths)


def test_weights_by_step_hold_from_their_step_on() -> None:
    table = [(0, {"web": 1, "code": 0}), (10, {"web": 1, "code": 1}), (31, {"web": 0, "code": 1})]
    plan = plan_of(
        {"web": 1000, "code": 1000},
        weights=table,
        batch_size=4,
        nb_consumer=2,
        samples_per_epoch=90,  # 12 steps: the last is short
    )
    run = Run(plan)
    by_step: list[Counter[str]] = []
    while len(by_step) < 48:
        before = len(run.seen)
        if run.step():
            by_step.append(Counter(source for source, _ in run.seen[before:]))
    assert all(step["code"] == 0 for step in by_step[:10])
    assert all(abs(step["code"] - step["web"]) <= 1 for step in by_step[10:31])
    assert all(step["web"] == 0 for step in by_step[31:])


def test_a_function_of_weights_is_asked_at_even_steps() -> None:
    asked = []

    def weights(step: int) -> dict[str, float]:
        asked.append(step)
        return {"web": 1.0, "code": step / 1000}

    plan = plan_of({"web": 10, "code": 10}, weights=weights, weight_steps=1000)
    assert plan.mixture is not None
    assert len(asked) == 129
    assert (asked[0], asked[-1]) == (0, 1000)
    assert max(b - a for a, b in pairwise(asked)) == 8
    assert len(plan.mixture.table) == 129


def test_a_function_of_weights_is_asked_ever_less_often_where_nobody_says_when_it_ends() -> None:
    asked = []

    def weights(step: int) -> dict[str, float]:
        asked.append(step)
        return {"web": 1.0, "code": min(step, 1000) / 1000}

    plan = plan_of({"web": 10, "code": 10}, weights=weights)
    assert asked[:17] == list(range(17))
    assert asked[-1] == 2**24
    assert all(b - a <= max(2, a / 16) for a, b in pairwise(asked))
    assert plan.mixture is not None
    assert plan.mixture.table[-1][0] <= 1064  # from there on nothing changes


def test_a_source_keeps_its_order_whoever_is_beside_it() -> None:
    def order_of(**others: int) -> list[int]:
        run = Run(plan_of({**others, "web": 40}, weights=dict.fromkeys({**others, "web": 0}, 1)))
        while sum(name == "web" for name, _ in run.seen) < 40:
            run.step()
        return [sample for name, sample in run.seen if name == "web"][:40]

    assert order_of() == order_of(code=7) == order_of(books=90, code=3)
    assert order_of() != sorted(order_of())


def test_time_and_memory_are_those_of_the_batch() -> None:
    lengths = dict(zip(NAMES, (10**12, 3 * 10**11, 10**11, 10**10, 77), strict=True))
    plan = plan_of(lengths, weights=dict(zip(NAMES, (7, 2, 1, 0.5, 0.1), strict=True)),
                   nb_consumer=64, nearby_shuffle=8192)  # fmt: skip
    last = plan.nb_batches(3) - 1
    plan.batch(5, 3, 0)
    began = time.process_time()
    tracemalloc.start()
    for k in (0, 1, last // 2, last - 1, last):
        indices = plan.batch(5, 3, k)
        assert len(told(plan, indices.tolist())) == len(indices) > 0
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
    assert time.process_time() - began < 1


def test_the_order_is_pinned() -> None:
    """A run goes on after an upgrade: whoever changes this must raise the version of states."""
    lengths = {"web": 10**12, "code": 500, "books": 9}
    plan = plan_of(lengths, weights={"web": 0.6, "code": 0.3, "books": 0.1}, nearby_shuffle=8192)
    assert plan.batch(0, 0, 0).tolist() == PINNED[0]
    assert plan.batch(3, 0, 10**9).tolist() == PINNED[1]


@pytest.mark.parametrize("tail", ["balanced", "drop", "pad"])
def test_steps_are_dealt_as_parts_are(tail: Any) -> None:
    """As many places, in batches as long: other places."""
    mixture = plan_of({"web": 1}).mixture
    assert mixture is not None
    for nb, consumers, size in [(n, c, b) for n in range(40) for c in (1, 2, 3, 5) for b in (1, 4)]:
        if nb < consumers:
            continue
        parts = Plan(nb, size, consumers, False, 0, 0, tail)
        steps = replace(parts, mixture=replace(mixture, nb_positions=nb))
        places: list[int] = []
        for consumer in range(consumers):
            count = parts.nb_batches(consumer)
            assert steps.nb_batches(consumer) == count
            for k in range(count):
                cut = [
                    sum(b - a for a, b in plan.partition.segments(consumer, k, k + 1))
                    for plan in (parts, steps)
                ]
                assert cut[0] == cut[1]
            for start, stop in steps.partition.segments(consumer, 0, count):
                places += range(start, stop)
        assert len(places) == nb + nb_padded(parts.partition) - nb_dropped(parts.partition)
        assert len(set(places)) == min(nb, len(places))
        dealt = steps.partition.dealt([steps.nb_batches(c) for c in range(consumers)])
        assert sorted(set(np.concatenate([np.arange(a, b) for a, b in dealt] or [[]]))) == sorted(
            set(places)
        )


PINNED: list[list[int]] = [
    [265939207451, 1000000000325, 762724101817, 1000000000345],
    [368813887342, 1000000000502, 703228671779, 7657480758],
]
