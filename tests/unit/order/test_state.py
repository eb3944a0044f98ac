"""What is accepted as a state: what a run wrote, and nothing else."""

from __future__ import annotations

import copy
import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import RandomSampler

from swift_loader.errors import StateError
from swift_loader.order.budgeted import BudgetedOrder
from swift_loader.order.order import Order
from swift_loader.order.part import Taken
from swift_loader.order.planned import PlannedOrder
from swift_loader.order.sampled import SampledOrder
from swift_loader.order.sampling import Sampling
from swift_loader.order.sharded import ShardedOrder
from swift_loader.order.state import saved_seed
from swift_loader.order.stream import StreamOrder
from swift_loader.plan import Plan
from swift_loader.plan.budget import BudgetTable
from swift_loader.plan.shards import ShardDeal
from tests.unit.order.mixed import KINDS, goes_on, readers, states

RANDOM = RandomSampler(range(50), generator=torch.Generator())
SEEDS = Plan(2**62, 4, 2, False, 0, 7)
ORDERS: dict[str, Order] = {
    "plan": PlannedOrder(Plan(100, 4, 2, True, 20, 7), 1),
    "sampler": SampledOrder(Sampling(RANDOM, None, 4, False), SEEDS, 1),
    "stream": StreamOrder(SEEDS, 1, 3),
    "budget": BudgetedOrder.of(BudgetTable(np.arange(1, 60), 64, "padded"), 2, 1, True, 7),
    "shards": ShardedOrder.of(ShardDeal(20, 2, 3, True, 7, 8), "abc", 1, 4, "balanced"),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def taken(order: Order, epoch: int, ks: list[int]) -> dict[str, Any]:
    """The state after these batches, as it comes back from a file."""
    had = Taken(order.part(epoch))
    for k in ks:
        had.add(k)
    state: dict[str, Any] = json.loads(json.dumps(order.capture(had)))
    return state


def places(value: Any) -> list[tuple[Any, ...]]:
    """The paths of everything in `value`."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return [(), *((key, *path) for key, inner in items for path in places(inner))]


def mutated(state: Any, path: tuple[Any, ...], how: str, value: Any) -> Any:
    state = copy.deepcopy(state)
    if not path:
        return value
    parent = state
    for key in path[:-1]:
        parent = parent[key]
    if how == "delete":
        del parent[path[-1]]
    elif how == "add" and isinstance(parent, dict):
        parent["more"] = value
    else:
        parent[path[-1]] = value
    return state


@pytest.mark.parametrize("kind", ORDERS)
@given(data=st.data())
def test_mutated_states_are_refused_or_are_what_a_run_writes(
    kind: str, data: st.DataObject
) -> None:
    order = ORDERS[kind]
    ks = data.draw(st.permutations(range(6)))[: data.draw(st.integers(0, 6))]
    state: Any = taken(order, data.draw(st.integers(0, 3)), ks)
    path = data.draw(st.sampled_from(places(state)))
    how = data.draw(st.sampled_from(["replace", "replace", "delete", "add"]))
    changed = mutated(state, path, how, data.draw(JSON | st.integers(-1, 2**65)))
    if data.draw(st.booleans()):
        changed = [changed, {**state, "consumer": 0}]
    try:
        assert 0 <= saved_seed(changed) < 2**64
        resumed, epoch = order.resumed(changed)
    except StateError:
        return
    part = resumed.part(epoch)
    assert part.epoch == epoch < 2**62
    try:
        for number, details in islice(resumed.batches(part), 3):
            resumed.samples(number, details)
    except StateError:  # only drawing again shows what a sampler gives
        if kind != "sampler":
            raise
    again = taken(resumed, epoch, [])
    resumed.resumed(again)
    if not isinstance(changed, list) and changed["plan"] == state["plan"]:
        if kind in ("plan", "budget"):  # where all made equal steps, one stands for the others
            again["consumer"] = changed["consumer"]
        if kind == "budget" and "deal" not in changed["budget"]:
            del again["budget"]["deal"]  # older releases, which dealt these batches alike, had none
        if kind == "shards" and not changed["delivered"] and not changed["ahead"]:
            # Nothing was read of the epoch: any state will do.
            names = ("consumer", "worker_per_consumer")
            again.update({name: changed[name] for name in names})
        assert again == changed


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_mutated_states_of_mixtures_are_refused_or_a_loop_goes_on_from_them(
    kind: str, data: st.DataObject
) -> None:
    state = data.draw(st.sampled_from(states(kind)))
    path = data.draw(st.sampled_from(places(state)))
    how = data.draw(st.sampled_from(["replace", "replace", "delete", "add"]))
    changed = mutated(state, path, how, data.draw(JSON | st.integers(-1, 2**65)))
    for reader in readers(kind):
        goes_on(reader, changed)


@pytest.mark.parametrize("kind", ORDERS)
def test_state_of_another_kind_is_refused_by_name(kind: str) -> None:
    for other, order in ORDERS.items():
        if other != kind:
            with pytest.raises(StateError, match=r"the state is of a loader .* and this is a"):
                order.resumed(taken(ORDERS[kind], 0, [0]))


@pytest.mark.parametrize("kind", ["sampler", "stream"])
def test_samplers_and_streams_need_their_own_state(kind: str) -> None:
    order = ORDERS[kind]
    own, other = taken(order, 0, [0]), {**taken(order, 0, []), "consumer": 0}
    resumed, epoch = order.resumed([other, own])
    assert taken(resumed, epoch, []) == own
    for missing in (other, [other]):
        with pytest.raises(StateError, match=r"no state of consumer 1 among those of .*\[0\]"):
            order.resumed(missing)


@pytest.mark.parametrize("kind", ["sampler", "stream"])
def test_changed_setup_is_named(kind: str) -> None:
    state = taken(ORDERS[kind], 0, [0])
    state["plan"]["seed"] = 8
    with pytest.raises(StateError, match=r"seed was 8, is now 7.*same set-up"):
        ORDERS[kind].resumed(state)


def test_a_state_of_more_consumers_than_there_can_be_is_refused_at_once() -> None:
    for order in ORDERS.values():
        state: Any = taken(order, 0, [0])
        state["plan"] = {**state["plan"], "nb_consumer": 2**31, "tail": "drop"}
        with pytest.raises(StateError, match="nb_consumer"):
            order.resumed(state)
