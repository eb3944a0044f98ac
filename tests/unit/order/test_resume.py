"""Saving where a run is, and going on from there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from swift_loader.errors import StateError
from swift_loader.order.part import EpochPart, Taken
from swift_loader.order.planned import PlannedOrder
from swift_loader.order.resume import Resume, resume
from swift_loader.plan import Plan
from tests.unit.plan.partitions import nb_dropped, nb_padded

TAILS = st.sampled_from(["balanced", "drop", "pad"])


def make(n: int = 100, **options: Any) -> Plan:
    defaults = {"batch_size": 4, "nb_consumer": 2, "shuffle": True, "nearby_shuffle": 20, "seed": 1}
    return Plan(n, **(defaults | options))


def capture(
    plan: Plan, epoch: int, consumer: int, delivered: int, ahead: Sequence[int] = ()
) -> dict[str, Any]:
    """The state of a consumer that was delivered these batches."""
    most = plan.nb_batches(consumer)
    part = EpochPart(0, epoch, most, min(delivered, most), frozenset(ahead))
    return PlannedOrder(plan, consumer).capture(Taken(part))


def saved(
    plan: Plan, epoch: int, consumer: int, delivered: int, ahead: Sequence[int] = ()
) -> dict[str, Any]:
    """A state, as it comes back from a file."""
    state: dict[str, Any] = json.loads(json.dumps(capture(plan, epoch, consumer, delivered, ahead)))
    return state


def order(plan: Plan, epoch: int) -> list[int]:
    whole = replace(plan, nb_consumer=1, tail="balanced", spans=None)
    return list(chain(*(whole.batch(epoch, 0, k).tolist() for k in range(whole.nb_batches(0)))))


def part(plan: Plan, epoch: int, consumer: int, batches: Sequence[int]) -> list[int]:
    """What a consumer gets in these batches, as far as it has them."""
    own = [k for k in batches if k < plan.nb_batches(consumer)]
    return list(chain(*(plan.batch(epoch, consumer, k).tolist() for k in own)))


def rest(resumed: Resume, consumer: int) -> list[int]:
    last = resumed.plan.nb_batches(consumer)
    batches = [k for k in range(resumed.first_batch, last) if k not in resumed.ahead]
    return part(resumed.plan, resumed.epoch, consumer, batches)


@st.composite
def set_ups(draw: st.DrawFn, n: int | None = None) -> Plan:
    n = draw(st.integers(8, 150)) if n is None else n
    batch_size = draw(st.integers(1, 12))
    plan = make(
        n,
        batch_size=batch_size,
        nb_consumer=draw(st.integers(1, 6)),
        nearby_shuffle=5 * batch_size,
        tail=draw(TAILS),
    )
    assume(plan.nb_batches(0) > 0)
    return plan


@given(set_ups(), st.integers(0, 5), st.data())
def test_same_set_up_goes_on_exactly(plan: Plan, epoch: int, data: st.DataObject) -> None:
    delivered = data.draw(st.integers(0, plan.nb_batches(0)))
    source = data.draw(st.integers(0, plan.nb_consumer - 1))
    everyone = [saved(plan, epoch, c, delivered) for c in range(plan.nb_consumer)]
    for consumer in range(plan.nb_consumer):
        resumed = resume(everyone, plan, consumer)
        assert resumed == Resume(epoch, plan, min(delivered, plan.nb_batches(consumer)))
        if delivered <= plan.nb_batches(source):
            assert resume(everyone[source], plan, consumer) == resumed


@given(set_ups(), st.integers(0, 5), st.data())
def test_another_set_up_gets_what_was_left_exactly_once(
    old: Plan, epoch: int, data: st.DataObject
) -> None:
    new = data.draw(set_ups(n=old.nb_samples))
    delivered = data.draw(st.integers(1, old.nb_batches(0)))
    state = saved(old, epoch, 0, delivered)
    seen = set(chain(*(part(old, epoch, c, range(delivered)) for c in range(old.nb_consumer))))
    left = [index for index in order(old, epoch) if index not in seen]
    check_rest(state, old, new, epoch, left if delivered < old.nb_batches(0) else [])


def check_rest(state: Any, old: Plan, new: Plan, epoch: int, left: list[int]) -> None:
    """All consumers of `new` together get `left`, whatever the tail rules; then whole epochs."""
    resumed = [resume(state, new, consumer) for consumer in range(new.nb_consumer)]
    same_deal = (old.nb_consumer, old.batch_size, old.tail) == (
        new.nb_consumer,
        new.batch_size,
        new.tail,
    )
    assert {each.epoch for each in resumed} == {epoch}
    if resumed == [Resume(epoch, new, new.nb_batches(c)) for c in range(new.nb_consumer)]:
        assert len(left) < new.nb_consumer * new.batch_size if new.tail == "drop" else left == []
        return
    assert same_deal or len(set(resumed)) == 1
    counts = Counter(chain(*(rest(each, c) for c, each in enumerate(resumed))))
    plan = resumed[0].plan
    steps = {each.plan.nb_batches(c) - each.first_batch for c, each in enumerate(resumed)}
    assert len(steps) == 1 or (new.tail == "balanced" and max(steps) - min(steps) == 1)
    if same_deal:
        assert set(counts) <= set(order(old, epoch))
    elif nb_padded(plan.partition):
        assert set(counts) == set(left)
        assert sum(counts.values()) == len(left) + nb_padded(plan.partition)
    elif nb_dropped(plan.partition):
        assert set(counts) <= set(left)
        assert set(counts.values()) == {1}
        assert len(counts) == len(left) - nb_dropped(plan.partition)
    else:
        dealt = list(chain(*(rest(each, c) for c, each in enumerate(resumed))))
        assert dealt == left


@given(st.integers(30, 200), st.lists(st.tuples(set_ups(n=30), st.integers(0, 9)), max_size=6))
def test_resuming_again_and_again_loses_and_repeats_nothing(
    n: int, stages: list[tuple[Plan, int]]
) -> None:
    plan = make(n, nb_consumer=3)
    expected = Counter(range(n))
    resumed = Resume(2, plan, 0)
    seen: Counter[int] = Counter()
    for set_up, steps in stages:
        now = resumed.plan
        stop = min(resumed.first_batch + steps, now.nb_batches(0))
        for consumer in range(now.nb_consumer):
            seen.update(part(now, 2, consumer, range(resumed.first_batch, stop)))
        if stop == now.nb_batches(0):
            break
        state = saved(now, 2, 0, stop)
        new = make(
            n,
            batch_size=set_up.batch_size,
            nb_consumer=set_up.nb_consumer,
            nearby_shuffle=set_up.nearby_shuffle,
        )
        resumed = resume(state, new, 0)
        assert all(resume(state, new, c) == resumed for c in range(new.nb_consumer))
    else:
        for consumer in range(resumed.plan.nb_consumer):
            seen.update(rest(resumed, consumer))
    assert seen == expected


@given(set_ups(), st.data())
def test_consumers_that_went_unequally_far_need_the_states_of_all(
    old: Plan, data: st.DataObject
) -> None:
    states, seen = [], []
    done = []
    for consumer in range(old.nb_consumer):
        nb_batches = old.nb_batches(consumer)
        delivered = data.draw(st.integers(0, nb_batches))
        later = st.integers(delivered, max(delivered, nb_batches - 1))
        ahead = data.draw(st.sets(later, max_size=4)) if delivered < nb_batches else set()
        done.append(delivered + len(ahead) == nb_batches)
        seen += part(old, 3, consumer, [*range(delivered), *sorted(ahead)])
        states.append(saved(old, 3, consumer, delivered, sorted(ahead)))
    shuffled = data.draw(st.permutations(states))

    for consumer in range(old.nb_consumer):
        own = resume(shuffled, old, consumer)
        mine = seen_of(states[consumer], old, consumer)
        everything = part(old, 3, consumer, range(old.nb_batches(consumer)))
        assert Counter(rest(own, consumer)) + Counter(mine) == Counter(everything)

    left = [index for index in order(old, 3) if index not in set(seen)]
    new = data.draw(set_ups(n=old.nb_samples))
    if not seen:
        assert resume(shuffled, new, 0) == Resume(3, new, 0)
    elif (old.nb_consumer, old.batch_size, old.tail) != (new.nb_consumer, new.batch_size, new.tail):
        check_rest(shuffled, old, new, 3, [] if all(done) else left)


def seen_of(state: dict[str, Any], plan: Plan, consumer: int) -> list[int]:
    return part(plan, 3, consumer, [*range(state["delivered"]), *state["ahead"]])


def test_nothing_is_left_of_an_epoch_whose_last_batch_was_delivered() -> None:
    plan = make()
    last = plan.nb_batches(0)
    assert capture(plan, 4, 1, 3, range(3, last)) == capture(plan, 4, 1, last)
    assert resume(capture(plan, 4, 1, last), plan, 0) == Resume(4, plan, last)
    other = make(batch_size=5)
    assert resume(capture(plan, 4, 1, last), other, 0) == Resume(4, other, other.nb_batches(0))
    left = replace(plan, spans=((10, 30),))
    end = left.nb_batches(1)
    assert resume(capture(left, 4, 1, end), plan, 1) == Resume(4, left, end)


@pytest.mark.parametrize("plan", [make(0), make(3, tail="drop")])
def test_an_epoch_without_batches_is_one_that_has_not_begun(plan: Plan) -> None:
    assert plan.nb_batches(0) == 0
    assert resume(saved(plan, 4, 0, 0), plan, 1) == Resume(4, plan, 0)
    other = replace(plan, batch_size=1)
    assert resume(saved(plan, 4, 0, 0), other, 1) == Resume(4, other, 0)


def test_batches_out_of_order_are_remembered_until_the_gap_is_closed() -> None:
    plan = make()
    assert capture(plan, 0, 1, 2, [5, 3]) == capture(plan, 0, 1, 2, [3, 5])
    assert capture(plan, 0, 1, 2, [2, 3, 5]) == capture(plan, 0, 1, 4, [5])
    state = saved(plan, 0, 1, 2, [5, 3])
    assert resume(state, plan, 1) == Resume(0, plan, 2, (3, 5))
    with pytest.raises(StateError, match=r"\[3, 5\] out of order.*states of all"):
        resume(state, plan, 0)
    with pytest.raises(StateError, match="out of order"):
        resume(state, make(batch_size=5), 1)


def test_state_is_small_however_many_samples() -> None:
    plan = make(10**12, nb_consumer=8, nearby_shuffle=0)
    state = capture(plan, 0, 0, 10**9)
    assert len(json.dumps(state)) < 400
    resumed = resume(state, make(10**12, nb_consumer=5, batch_size=7, nearby_shuffle=0), 4)
    assert resumed.plan.spans is not None
    assert len(resumed.plan.spans) == 8
    left = 10**12 - 8 * 4 * 10**9
    assert resumed.plan.nb_batches(4) == -(-(left // 5) // 7)
    assert len(json.dumps(capture(resumed.plan, 0, 4, 3))) < 800


def test_another_batch_size_keeps_the_window_of_the_begun_epoch() -> None:
    old = make(batch_size=4, nearby_shuffle=20)
    new = make(batch_size=8, nearby_shuffle=40)
    resumed = resume(saved(old, 0, 0, 3), new, 0)
    assert resumed.plan == replace(new, nearby_shuffle=20, spans=resumed.plan.spans)
    # Interrupted once more, and started as before: nothing was changed, nothing is refused.
    again = resume(saved(resumed.plan, 0, 0, 2), new, 0)
    assert again == Resume(0, resumed.plan, 2)


def test_a_window_changed_by_hand_counts_from_the_next_epoch() -> None:
    old, new = make(nearby_shuffle=20), make(nearby_shuffle=30)
    assert resume(saved(old, 0, 0, 3), new, 0) == Resume(0, old, 3)
    assert resume(saved(old, 1, 0, 0), new, 0) == Resume(1, new, 0)


def test_dropped_samples_are_among_the_rest_and_padded_ones_count_once() -> None:
    dropping = make(11, tail="drop", shuffle=False)
    resumed = resume(saved(dropping, 0, 0, 0), make(11, batch_size=3, shuffle=False), 0)
    assert resumed.plan.spans is None
    padding = make(5, nb_consumer=4, batch_size=1, tail="pad", shuffle=False)
    # Everybody has had one of its two, so 0, 2, 3 and 4 are gone; only 1 is left.
    resumed = resume(saved(padding, 0, 0, 1), make(5, nb_consumer=1, shuffle=False), 0)
    assert resumed.plan.spans == ((1, 2),)
    dropping = make(23, tail="drop", shuffle=False)
    resumed = resume(saved(dropping, 0, 0, 1), make(23, nb_consumer=1, shuffle=False), 0)
    assert resumed.plan.spans == ((4, 12), (16, 23))


def test_nothing_left_is_an_empty_rest() -> None:
    padding = make(3, nb_consumer=2, batch_size=1, tail="pad")
    states = [saved(padding, 0, 0, 2), saved(padding, 0, 1, 1)]
    # Only the wrapped sample was missing, and consumer 0 has had it.
    new = make(3, nb_consumer=1)
    assert resume(states, new, 0) == Resume(0, new, 1)
    dropping = make(nb_consumer=1, batch_size=50, tail="drop")
    state = saved(make(nb_consumer=1, batch_size=10), 0, 0, 8)
    assert resume(state, dropping, 0) == Resume(0, dropping, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 101}, "nb_samples was 100, is now 101"),
        ({"seed": 2}, "seed was 1, is now 2"),
        ({"shuffle": False}, "shuffle was True, is now False"),
        ({"nearby_shuffle": 0}, "nearby_shuffle was 20, is now 0"),
        ({"n": 99, "seed": 3}, "nb_samples was 100, is now 99, seed was 1, is now 3"),
    ],
)
@pytest.mark.parametrize("delivered", [0, 3])
def test_another_run_is_refused_by_name(
    options: dict[str, Any], message: str, delivered: int
) -> None:
    state = saved(make(), 0, 0, delivered)
    for set_up in ({}, {"batch_size": 5}, {"nb_consumer": 3}):
        with pytest.raises(StateError, match=message + ".*start afresh"):
            resume(state, make(**options | set_up), 0)


def test_the_window_means_nothing_without_shuffling() -> None:
    old, new = make(shuffle=False, nearby_shuffle=20), make(shuffle=False, nearby_shuffle=0)
    assert resume(saved(old, 0, 0, 3), new, 0).first_batch == 3


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([], "empty"),
        ([saved(make(), 0, 0, 3)], r"lacks the states of consumers \[1\] of 2.*not in a list"),
        ([saved(make(), 0, 1, 3)] * 2, r"twice: \[1, 1\]"),
        (
            [saved(make(), 0, 0, 3), saved(make(), 2, 1, 3)],
            "consumer 0 is in epoch 0, consumer 1 in epoch 2",
        ),
        ([saved(make(), 0, 0, 3), saved(make(), 1, 1, 3)], "epoch 1"),
        (
            [saved(make(), 0, 0, 3), saved(make(seed=7), 0, 1, 3)],
            r"consumers 0 and 1 .*seed was 1, is now 7.*saved together",
        ),
        ([saved(make(), 0, 0, 3), saved(make(spans=((0, 50),)), 0, 1, 3)], "spans"),
        ([saved(make(), 0, 0, 3), saved(make(nb_consumer=3), 0, 1, 3)], "nb_consumer"),
    ],
)
def test_lists_that_are_not_one_whole_run_are_refused(states: Any, message: str) -> None:
    for plan in (make(), make(batch_size=5)):
        with pytest.raises(StateError, match=message):
            resume(states, plan, 0)


def broken(**changes: Any) -> dict[str, Any]:
    state = saved(make(), 0, 0, 3) | changes
    return {key: value for key, value in state.items() if value is not ...}


def broken_plan(**changes: Any) -> dict[str, Any]:
    fields = make().fingerprint() | changes
    return broken(plan={key: value for key, value in fields.items() if value is not ...})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "NoneType is not a state"),
        ("state", "str is not a state"),
        (17, "int is not a state"),
        ([17], "int is not a state"),
        ({}, "no valid version"),
        (broken(version=3), "version 3.*newer.*upgrade"),
        (broken(version=0), "no valid version"),
        (broken(version="1"), "no valid version"),
        (broken(version=True), "no valid version"),
        (broken(epoch=...), "'epoch' is missing"),
        (broken(version=1), "version 1.*shuffled in another way"),
        (broken(epoch=-1), r"epoch=-1 is not an integer in"),
        (broken(epoch=2**63), "epoch=9223372036854775808"),
        (broken(colour=1), r"\['colour'\]"),
        (broken(order=...), "'order' is missing"),
        (broken(order="sampler"), "of a loader with a sampler of yours"),
        (broken(order=["plan"]), "nothing that is known"),
        (broken(epoch=1.0), "epoch=1.0 is not an integer"),
        (broken(consumer=2), "consumer=2"),
        (broken(delivered=14), "delivered=14"),
        (broken(delivered=-1), "delivered=-1"),
        (broken(delivered=None), "delivered=None is not an integer"),
        (broken(ahead=...), "'ahead' is missing"),
        (broken(ahead=3), "malformed"),
        (broken(ahead=[2]), r"ahead=\[2\]"),
        (broken(ahead=[5, 5]), r"ahead=\[5, 5\]"),
        (broken(ahead=[13]), r"ahead=\[13\]"),
        (broken(plan=...), "'plan' is missing"),
        (broken(plan=[]), "the fields"),
        (broken(plan=5), "malformed"),
        (broken_plan(seed=...), "the fields"),
        (broken_plan(colour=1), "the fields"),
        (broken_plan(batch_size=0), "batch_size=0"),
        (broken_plan(spans=[[0, 1000]]), "spans"),
        (broken_plan(spans=7), "spans=7 is no list"),
        (broken_plan(spans=[]), "spans"),
        (broken_plan(spans={}), "spans"),
        (broken_plan(spans=[[0, 100]]), "whole epoch"),
        (broken_plan(spans=[[0, 5], [5, 9]]), "does not ascend"),
    ],
)
def test_what_is_not_a_state_is_refused(state: Any, message: str) -> None:
    with pytest.raises(StateError, match=message):
        resume(state, make(), 0)


def test_wrong_use_is_refused() -> None:
    plan = make()
    state = saved(plan, 0, 0, 3)
    with pytest.raises(IndexError, match="consumer 2"):
        resume(state, plan, 2)
    with pytest.raises(ValueError, match="whole epoch"):
        resume(state, replace(plan, spans=((0, 5),)), 0)
