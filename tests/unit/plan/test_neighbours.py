"""Batches that are looked up together: the very ones that the plan gives one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_loader.plan import Plan
from swift_loader.plan.neighbours import Neighbours
from swift_loader.plan.partition import Tail
from tests.unit.plan import mixtures


def plan_of(
    nb_samples: int, nb_consumer: int, batch_size: int, tail: Tail, spans: bool = False
) -> Plan:
    gaps = ((0, nb_samples // 3), (nb_samples // 2, nb_samples)) if nb_samples > 5 else None
    return Plan(
        nb_samples=nb_samples,
        nb_consumer=nb_consumer,
        batch_size=batch_size,
        nearby_shuffle=8192,
        shuffle=True,
        seed=3,
        tail=tail,
        spans=gaps if spans else None,
    )


@given(
    nb_samples=st.integers(8, 5000),
    nb_consumer=st.integers(1, 4),
    batch_size=st.sampled_from([1, 2, 7, 8, 32, 100, 300, 600]),
    tail=st.sampled_from(["balanced", "drop", "pad"]),
    spans=st.booleans(),
    steps=st.lists(st.tuples(st.integers(-3, 70), st.booleans()), max_size=40),
)
def test_any_walk_through_any_plan(
    nb_samples: int,
    nb_consumer: int,
    batch_size: int,
    tail: Tail,
    spans: bool,
    steps: list[tuple[int, bool]],
) -> None:
    plan = plan_of(nb_samples, nb_consumer, batch_size, tail, spans)
    walk(plan, nb_consumer - 1, steps)


def walk(plan: Plan, consumer: int, steps: list[tuple[int, bool]]) -> None:
    """Ask for batches near each other, and compare each with the plan's own."""
    neighbours = Neighbours(consumer)
    epoch = k = 0
    for step, next_epoch in steps:
        epoch += next_epoch
        k = min(max(0, k + step), plan.nb_batches(consumer) - 1)
        if k < 0:
            return
        indices, seed = neighbours.batch(plan, epoch, k)
        assert indices == plan.batch(epoch, consumer, k).tolist()
        assert seed == plan.batch_seed(epoch, consumer, k)
        indices.clear()  # whoever has them may do with them what it likes


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    nb_consumer=st.integers(1, 3),
    tail=st.sampled_from(["balanced", "drop", "pad"]),
    sizes=st.none()
    | st.lists(st.integers(1, 9), min_size=4, max_size=4)
    | st.integers(1, 9).map(lambda size: [size] * 4),
    steps=st.lists(st.tuples(st.integers(-3, 70), st.booleans()), max_size=40),
)
def test_any_walk_through_a_mixture(
    lengths: list[int],
    nb_consumer: int,
    tail: Tail,
    sizes: list[int] | None,
    steps: list[tuple[int, bool]],
) -> None:
    names = "abcd"[: len(lengths)]
    weights = {name: 1.0 + number for number, name in enumerate(names)}
    by_batch: dict[str, Any] = {}
    if sizes:
        by_batch = {"mix": "batch", "batch_sizes": dict(zip(names, sizes, strict=False))}
    plan = mixtures.plan_of(
        dict(zip(names, lengths, strict=True)),
        weights=weights,
        nb_consumer=nb_consumer,
        tail=tail,
        samples_per_epoch=997,
        **by_batch,
    )
    walk(plan, nb_consumer - 1, steps)


def test_a_batch_that_there_is_not() -> None:
    plan = plan_of(100, 1, 8, "balanced")
    neighbours = Neighbours(0)
    for k in range(13):
        neighbours.batch(plan, 0, k)
    for k in (13, 14, -1):
        with pytest.raises(IndexError):
            neighbours.batch(plan, 0, k)


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches plans were asked for at once."""
    counts: list[int] = []
    batches = Plan.batches

    def counted(self: Plan, epoch: int, consumer: int, first: int, last: int) -> object:
        counts.append(last - first)
        return batches(self, epoch, consumer, first, last)

    monkeypatch.setattr(Plan, "batches", counted)
    return counts


def test_neighbours_are_looked_up_together(looked_up: list[int]) -> None:
    plan = plan_of(1 << 20, 1, 8, "balanced")
    neighbours = Neighbours(0)
    for k in range(0, 640, 2):
        neighbours.batch(plan, 0, k)
    assert looked_up == [1, *[64] * 10]
    looked_up.clear()
    for k in range(0, 640, 64):  # one of 64 workers
        neighbours.batch(plan, 1, k)
    assert looked_up == [1] * 10


LENGTHS = {"web": 10_000, "code": 5000}


@pytest.mark.parametrize(("nb_consumer", "together"), [(1, 256), (2, 128), (16, 64)])
def test_those_of_a_mixture_are_further_away(
    looked_up: list[int], nb_consumer: int, together: int
) -> None:
    plan = mixtures.plan_of(
        LENGTHS, batch_size=8, nb_consumer=nb_consumer, samples_per_epoch=1 << 20
    )
    neighbours = Neighbours(nb_consumer - 1)
    for k in range(0, 2 * together, 2):
        neighbours.batch(plan, 0, k)
    assert looked_up == [1, together, together]


def test_batches_of_one_source_are_looked_up_together_if_all_are_of_one_size(
    looked_up: list[int],
) -> None:
    for sizes, expected in [((8, 8), [1, 256]), ((8, 4), [1] * 20)]:
        plan = mixtures.plan_of(
            LENGTHS, mix="batch", batch_sizes=dict(zip(LENGTHS, sizes, strict=True))
        )
        neighbours = Neighbours(0)
        for k in range(20):
            neighbours.batch(plan, 0, k)
        assert looked_up == expected
        looked_up.clear()


def test_what_had_another_size_before_a_resume_is_looked_up_together_once(
    looked_up: list[int],
) -> None:
    before = mixtures.plan_of(
        LENGTHS, mix="batch", nb_consumer=2, batch_sizes=dict.fromkeys(LENGTHS, 3)
    )
    run = mixtures.Run(before)
    for _ in range(30):  # the other consumer has none of its batches
        run.take(0)
    run.resume(
        mixtures.plan_of(LENGTHS, mix="batch", batch_sizes=dict.fromkeys(LENGTHS, 8)),
        by_one=False,
    )
    neighbours = Neighbours(0)
    sizes = []
    looked_up.clear()
    for k in range(40):
        indices, _ = neighbours.batch(run.plan, 0, k)
        sizes.append(len(indices))
    assert sizes == [3] * 29 + [8] * 11
    assert looked_up == [1, 256, *[1] * 39]
