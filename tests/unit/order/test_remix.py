"""A mixture goes on with other consumers, weights, sources: nothing twice, nothing lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_loader import StateError
from swift_loader.order.remix import evened
from swift_loader.order.state import read
from tests.unit.plan.mixtures import Run, plan_of
from tests.unit.plan.test_mixture import rounds_are_whole

LENGTHS = {"web": 37, "code": 12, "books": 5}
WEIGHTS = {"web": 0.6, "code": 0.3, "books": 0.1}

deals = st.fixed_dictionaries({"nb_consumer": st.integers(1, 4), "batch_size": st.integers(2, 6)})
weights_of = st.fixed_dictionaries(
    {name: st.sampled_from([0.05, 0.3, 1.0, 4.0]) for name in LENGTHS}
)
schedules = st.lists(weights_of, min_size=1, max_size=3).map(
    lambda rows: [(7 * number, row) for number, row in enumerate(rows)]
)
COMMON: dict[str, Any] = {"lengths": LENGTHS, "samples_per_epoch": 61}


@given(
    st.lists(
        st.tuples(deals, weights_of, st.integers(0, 25), st.booleans()), min_size=2, max_size=5
    )
)
@settings(max_examples=60)
def test_several_resumes_with_other_weights_and_consumers(stages: list[Any]) -> None:
    run, expected = None, Counter[str]()
    for deal, weights, steps, by_one in stages:
        plan = plan_of(**COMMON, **deal, weights=weights)
        if run is None:
            run = Run(plan)
        else:
            run.resume(plan, by_one=by_one)
        before = len(run.seen)
        for _ in range(steps):
            run.step()
            assert rounds_are_whole(run.seen, LENGTHS)
        for name, weight in weights.items():
            expected[name] += (len(run.seen) - before) * weight / sum(weights.values())
    assert run is not None
    counts = Counter(source for source, _ in run.seen)
    for name, count in expected.items():
        assert abs(counts[name] - count) < 3 + len(stages) / 2


@pytest.mark.parametrize(
    "kind", [{"tail": "drop"}, {"tail": "pad"}, {"mix": "batch"}, {"exhausted": "stop"}], ids=str
)
@given(st.lists(st.tuples(deals, weights_of, st.integers(0, 25)), min_size=2, max_size=4))
@settings(max_examples=40)
def test_resumes_neither_repeat_nor_leave_out_a_sample(
    kind: dict[str, Any], stages: list[Any]
) -> None:
    run, weights = None, WEIGHTS
    for number, (deal, others, steps) in enumerate(stages):
        weights = others if number % 2 else weights  # each second time, only the consumers differ
        plan = plan_of(LENGTHS, **deal, **kind, weights=weights)
        if run is None:
            run = Run(plan)
        else:
            run.resume(plan)
        if "exhausted" not in kind:
            assert len({len(numbers) for numbers in run.numbers}) == 1, "steps are equal"
        for _ in range(steps):
            run.step()
            assert rounds_are_whole(run.seen, LENGTHS)


def left_of(run: Run) -> int:
    """Samples that are left of the epoch."""
    pairs = zip(run.orders, run.numbers, strict=True)
    return sum(len(order.samples(*one)) for order, numbers in pairs for one in numbers)


@given(st.lists(st.tuples(deals, st.integers(0, 30), st.booleans()), min_size=2, max_size=5),
       st.sampled_from(["repeat", "drop", "stop"]))  # fmt: skip
@settings(max_examples=60)
def test_other_consumers_get_the_same_sequence(stages: list[Any], exhausted: str) -> None:
    common: dict[str, Any] = {"lengths": LENGTHS, "weights": WEIGHTS, "exhausted": exhausted}
    whole = Run(plan_of(**common))
    run, longer = None, False
    for deal, steps, by_one in stages:
        plan = plan_of(**common, **deal)
        if run is None:
            run = Run(plan)
        else:
            left = left_of(run)
            longer |= exhausted == "repeat" and evened(plan, left) != left
            run.resume(plan, by_one=by_one)
        for _ in range(steps):
            run.step()
    assert run is not None
    while len(whole.seen) < len(run.seen):
        whole.step()
    if longer:
        # The rest of an epoch that is made longer, so that all make equal steps, begins anew: at a
        # place there another source may stand, and the order of each source is the same.
        counts, others = (
            Counter(source for source, _ in seen)
            for seen in (run.seen, whole.seen[: len(run.seen)])
        )
        assert all(abs(counts[name] - others[name]) <= len(stages) for name in LENGTHS)
        assert rounds_are_whole(run.seen, LENGTHS)
        return
    # What an epoch's last short batches leave is dealt out by the same places.
    assert Counter(run.seen) == Counter(whole.seen[: len(run.seen)])


@given(st.lists(st.tuples(deals, schedules, st.integers(0, 25)), min_size=2, max_size=4))
@settings(max_examples=40)
def test_schedules_go_on_at_their_step(stages: list[Any]) -> None:
    run, nb_steps = None, 0
    for deal, table, steps in stages:
        plan = plan_of(**COMMON, **deal, weights=table)
        if run is None:
            run = Run(plan)
        else:
            run.resume(plan)
        mixture = run.plan.mixture
        assert mixture is not None
        for _ in range(steps):
            nb_steps += run.step()
            assert rounds_are_whole(run.seen, LENGTHS)
    assert run is not None


@given(st.data(), deals, deals, weights_of)
@settings(max_examples=60)
def test_consumers_that_made_unequal_steps_lose_nothing(
    data: st.DataObject, deal: Any, other: Any, weights: Any
) -> None:
    run = Run(plan_of(**COMMON, **deal, weights=WEIGHTS))
    for consumer in range(deal["nb_consumer"]):
        for _ in range(data.draw(st.integers(0, 3))):
            run.take(consumer, data.draw(st.integers(0, 2)))
    run.resume(plan_of(**COMMON, **other, weights=weights), by_one=False)
    while run.step():
        pass
    assert rounds_are_whole(run.seen, LENGTHS)
    assert len(run.seen) == 61
    for _ in range(30):
        run.step()
        assert rounds_are_whole(run.seen, LENGTHS)


@given(deals, deals, weights_of, st.integers(0, 12), st.integers(0, 12))
@settings(max_examples=60)
def test_every_sample_comes_once_though_weights_change_in_mid_epoch(
    deal: Any, other: Any, weights: Any, first: int, second: int
) -> None:
    run = Run(plan_of(LENGTHS, **deal, weights=WEIGHTS, exhausted="drop"))
    everything = sorted((name, i) for name, n in LENGTHS.items() for i in range(n))
    going = True
    for count, plan in (
        (first, plan_of(LENGTHS, **other, weights=weights, exhausted="drop")),
        (second, plan_of(LENGTHS, **deal, weights=WEIGHTS, exhausted="drop")),
    ):
        for _ in range(count):
            going = going and run.step()
        if not going:
            return
        run.resume(plan)
    while run.step():
        pass
    assert sorted(run.seen) == everything
    run.seen.clear()
    while run.step():
        pass
    assert sorted(run.seen) == everything


@given(deals, deals, st.integers(1, 40), st.integers(1, 30))
@settings(max_examples=40)
def test_sources_come_go_and_grow_and_the_others_do_not_notice(
    deal: Any, other: Any, steps: int, grown: int
) -> None:
    run = Run(plan_of(LENGTHS, **deal, weights=WEIGHTS))
    for _ in range(steps):
        run.step()
    had = sum(source == "web" for source, _ in run.seen)
    lengths = {"mail": 9, "code": LENGTHS["code"] + grown, "web": LENGTHS["web"]}
    notes = run.resume(plan_of(lengths, **other, weights=dict.fromkeys(lengths, 1)))
    said = "; ".join(notes)
    assert "'mail' is new" in said
    assert "'books' was taken out" in said
    assert "'code' has" in said
    seen_of_code = Counter(sample for source, sample in run.seen if source == "code")
    while sum(source == "web" for source, _ in run.seen) < had + 80:
        run.step()
        assert rounds_are_whole([one for one in run.seen if one[0] == "web"], {"web": 37})
        assert rounds_are_whole([one for one in run.seen if one[0] == "mail"], {"mail": 9})
    # The round of the grown source ends as it began: nothing of it came twice before its rest.
    codes = [sample for source, sample in run.seen if source == "code"]
    begun = sum(seen_of_code.values()) // 12 * 12
    if begun < sum(seen_of_code.values()):
        assert sorted(codes[begun : begun + 12]) == list(range(12))
        begun += 12
    assert (
        sorted(codes[begun : begun + 12 + grown]) == list(range(12 + grown))[: len(codes) - begun]
    )


def test_a_source_with_fewer_samples_begins_anew() -> None:
    run = Run(plan_of(LENGTHS, weights=WEIGHTS))
    for _ in range(4):
        run.step()
    notes = run.resume(plan_of({**LENGTHS, "web": 20}, weights=WEIGHTS))
    assert any("'web' has 20 samples, had 37" in note for note in notes)
    run.seen.clear()
    for _ in range(30):
        run.step()
    assert rounds_are_whole(run.seen, {"web": 20})


def test_notes_are_none_where_nothing_differs() -> None:
    run = Run(plan_of(LENGTHS, weights=WEIGHTS, nb_consumer=2))
    run.step()
    assert run.resume(plan_of(LENGTHS, weights=WEIGHTS, nb_consumer=3)) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"exhausted": "drop"},
        {"shuffle": False},
    ],
)
def test_what_can_not_be_changed_is_refused(change: dict[str, Any]) -> None:
    run = Run(plan_of(LENGTHS, weights=WEIGHTS))
    run.step()
    with pytest.raises(StateError, match=next(iter(change))):
        run.resume(plan_of(LENGTHS, weights=WEIGHTS, **change))


def test_damaged_states_are_refused() -> None:
    run = Run(plan_of(LENGTHS, weights=WEIGHTS))
    run.step()
    [state] = run.states()
    mixture = state["plan"]["mixture"]
    assert read(state, "plan")
    for field, value in mixture.items():
        for bad in (None, "x", -1, 1.5, [], [[]], [["x"]], {}, [1, 2], 2**70, [[1, 2]], True):
            if bad == value or (field, bad) in FINE:
                continue
            damaged = {**state, "plan": {**state["plan"], "mixture": {**mixture, field: bad}}}
            with pytest.raises(StateError):
                read(damaged, "plan")


FINE = [
    *((name, -1) for name in ("first_epoch", "first_step", "nb_steps")),
    *((name, []) for name in ("limits", "holes")),
]
