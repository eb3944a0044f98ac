"""What is kept where not all fits: simulated against other rules, by the store's own books."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.further.eviction import batches_of, belady, fixed, lru, ours
from swift_loader.cache.farthest import Farthest
from swift_loader.cache.schedule import NEVER, Reach, Schedule
from swift_loader.plan import Plan

_EPOCHS = 10
_SAMPLES = 600


def _mean(rates: list[float]) -> float:
    return sum(rates) / len(rates)


@pytest.mark.parametrize("sizes", ["alike", "of many sizes", "tiny"])
@pytest.mark.parametrize("nearby", [0, 256])
def test_half_of_the_memory_gives_the_hits_of_the_best_rule_there_is(
    sizes: str, nearby: int
) -> None:
    plan = Plan(_SAMPLES, 16, 2, True, nearby, 3)
    draw = np.random.default_rng(1)
    nbytes = {
        "alike": np.full(_SAMPLES, 30_000),
        "of many sizes": draw.integers(10_000, 50_000, _SAMPLES),
        "tiny": draw.integers(100, 900, _SAMPLES),
    }[sizes].tolist()
    steps, capacity = plan.nb_batches(0), _SAMPLES // 2
    memory = sum(nbytes) // 2 + (256 + 64) * capacity
    batches = batches_of(plan, _EPOCHS, steps)
    got, evicted = ours(plan, _EPOCHS, steps, memory, nbytes.__getitem__)
    best = belady(batches, capacity)
    assert _mean(got[1:]) > 0.98 * _mean(best[1:])
    for rule in (lru, fixed):
        assert all(a > 0.98 * b for a, b in zip(got[1:], rule(batches, capacity)[1:], strict=True))
    assert not evicted  # nothing is gained by it


@pytest.mark.parametrize("share", [0.2, 0.3, 0.5, 0.6, 0.8, 0.9])
@pytest.mark.parametrize("run", [0.3, 0.6, 0.9])
def test_epochs_that_end_early_get_the_hits_of_the_best_rule_once_that_is_known(
    run: float, share: float
) -> None:
    plan = Plan(_SAMPLES, 16, 2, True, 0, 3)
    steps, capacity = int(plan.nb_batches(0) * run), int(_SAMPLES * share)
    memory = capacity * (30_000 + 256 + 64)
    batches = batches_of(plan, _EPOCHS, steps)
    got, _ = ours(plan, _EPOCHS, steps, memory, lambda sample: 30_000)
    # In the first epoch nobody knows that it will end early.
    assert _mean(got[2:]) > 0.98 * _mean(belady(batches, capacity)[2:])
    assert _mean(got[2:]) >= _mean(fixed(batches, capacity)[2:])


def test_schedule_looks_beyond_what_epochs_do_not_reach() -> None:
    plan = Plan(_SAMPLES, 16, 1, True, 0, 3)
    schedule = Schedule(plan)
    everything = np.arange(_SAMPLES)
    whole = schedule.after(everything, 4)
    short = schedule.after(everything, 4, 3)
    assert (schedule.after(everything, 4, schedule.steps) == whole).all()
    reached = short < schedule.time(6, 0)
    assert reached.sum() == 3 * 16
    assert (short[reached] == whole[reached]).all()
    assert ((short[~reached] % schedule.steps < 3) | (short[~reached] == NEVER)).all()


def test_schedule_says_when_each_sample_comes_next() -> None:
    plan = Plan(101, 7, 3, True, 0, 5)
    schedule = Schedule(plan)
    times = schedule.after(np.arange(101), 4)
    for consumer in range(3):
        for k in range(plan.nb_batches(consumer)):
            samples = plan.batch(5, consumer, k)
            assert (times[samples] == schedule.time(5, k)).all()
    assert (Schedule(None).after(np.arange(3), 0) == NEVER).all()
    assert (schedule.after(np.array([-3, 2**40]), 0) == NEVER).all()


def test_farthest_gives_what_is_wanted_last_first() -> None:
    order: Farthest[str] = Farthest()
    for key, time in (("a", 3), ("b", 9), ("c", 5), ("d", NEVER)):
        order.put(key, time)
    order.put("a", 7)
    order.remove("b")
    assert list(order.later_than(4)) == ["d", "a", "c"]
    assert list(order.later_than(5)) == ["d", "a"]
    assert order.outside(6) == ["c"]
    assert order.outside(5, 7) == ["a", "d"]
    assert len(order) == 3


def test_an_epoch_that_others_are_still_at_the_end_of_is_no_short_one() -> None:
    reach = Reach(640)
    late = [(0, k) for k in range(635, 640)]
    asked = [*((0, k) for k in range(635)), (1, 0), (1, 1), *late, *((1, k) for k in range(2, 400))]
    told = [reach.note(epoch, k) for epoch, k in asked]
    assert sum(told) == 2  # once an epoch
    assert (reach.batches, reach.has_changed) == (640, False)
    assert sum(reach.note(2, k) for k in range(100)) == 1
    assert (reach.batches, reach.has_changed) == (400, True)
    for epoch in (3, 4, 5):  # so short that it is over before that is seen
        for k in range(10):
            reach.note(epoch, k)
    assert reach.batches == 10
