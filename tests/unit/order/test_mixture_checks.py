"""Each field of a mixture's state that no run can have written is refused, and named."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from swift_loader.errors import ConfigError, StateError
from swift_loader.order.planned import PlannedOrder
from tests.unit.order.mixed import KINDS, LENGTHS, WEIGHTS, goes_on, readers, state_of, states
from tests.unit.plan.mixtures import plan_of

FRESH, LATER = 0, 2  # of `states`
HOLES = 12  # a consumer was behind another, and the weights changed


@pytest.mark.parametrize("kind", KINDS)
def test_every_state_that_a_run_writes_is_gone_on_with(kind: str) -> None:
    for state in states(kind):
        for reader in readers(kind):
            assert goes_on(reader, state)


def changed(kind: str, which: int, **fields: Any) -> Any:
    state = copy.deepcopy(states(kind)[which])
    state["plan"]["mixture"].update(fields)
    return state


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("samples", {"counts": [1, 0, 0]}),
        ("samples", {"counts": [-1, 0, 0]}),
        ("samples", {"debts": [2**62, 0, 0]}),
        ("samples", {"nb_steps": -1}),
        ("samples", {"nb_steps": 8}),
        ("samples", {"first_step": -1}),
        ("samples", {"first_step": 1}),
        ("samples", {"first_epoch": 7}),
        ("samples", {"first_epoch": -1}),
        ("samples", {"first_position": 19}),
        ("samples", {"limits": [37, 12, 5]}),
        ("samples", {"table": [[0, [10**400, 1, 1]]]}),
        ("samples", {"table": [[1, [0.6, 0.3, 0.1]]]}),
        ("samples", {"batch_sizes": [2**31, 1, 1]}),
        ("samples", {"batch_sizes": [2, 1, 1]}),
        ("samples", {"rounds": [[[0, 0, 2**31]], [[0, 0, 12]], [[0, 0, 5]]]}),
        ("samples", {"rounds": [[[2**62, 2**62, 37]], [[0, 0, 12]], [[0, 0, 5]]]}),
        ("samples", {"rounds": [[[0, 1, 37]], [[0, 0, 12]], [[0, 0, 5]]]}),
        ("by step", {"step_positions": 7}),
        ("batches", {"batch_sizes": [2**31, 3, 4]}),
        ("samples drop", {"limits": []}),
        ("samples drop", {"limits": [37, 12, 4]}),
        ("samples drop", {"debts": [1, 0, 0]}),
        ("samples drop", {"table": [[0, [1.0, 1.0, 1.0]], [9, [1.0, 2.0, 1.0]]]}),
        ("samples stop", {"lengths": [37, 12, 6]}),
    ],
    ids=str,
)
def test_fields_that_no_run_writes_are_named(kind: str, fields: dict[str, Any]) -> None:
    named = {"lengths": "limits", "first_position": "nb_steps"}  # which don't agree any more
    [name] = fields
    for reader in readers(kind):
        with pytest.raises(StateError, match=named.get(name, name)):
            reader.resumed(changed(kind, FRESH, **fields))


@pytest.mark.parametrize("kind", ["samples", "batches", "samples drop"])
def test_holes_that_no_run_leaves_are_named(kind: str) -> None:
    state = states(kind)[HOLES]
    mixture = state["plan"]["mixture"]
    holes, begin = mixture["holes"], mixture["first_position"]
    assert holes
    source = holes[0][1]
    for wrong in (
        [],  # which the spans tell of
        [*holes, holes[-1]],
        [*holes[:-1], [begin - 1, *holes[-1][1:]]],
        [[*holes[0][:2], mixture["counts"][source], 1], *holes[1:]],
        [[*holes[0][:2], -1, 1], *holes[1:]],
        [[*holes[0][:3], 2**31], *holes[1:]],
    ):
        for reader in readers(kind):
            with pytest.raises(StateError, match=r"holes|spans|nb_steps"):
                reader.resumed(changed(kind, HOLES, holes=wrong))


def test_an_epoch_that_counts_can_not_reach_is_named() -> None:
    state = {**states("samples")[LATER], "epoch": 2**61}
    with pytest.raises(StateError, match="epoch="):
        readers("samples")[0].resumed(state)


def test_numbers_too_long_to_be_shown_are_refused_by_name() -> None:
    state = states("samples")[FRESH]
    long = 10**5000
    for wrong in ({**state, "delivered": long}, {**state, "version": long}):
        with pytest.raises(StateError, match=r"delivered|version"):
            readers("samples")[0].resumed(wrong)
    with pytest.raises(StateError, match=r"mixture\.nb_steps=<int>"):
        readers("samples")[0].resumed(changed("samples", FRESH, nb_steps=long))


def test_batches_and_steps_that_a_state_may_not_have_are_refused_in_a_mixture_too() -> None:
    with pytest.raises(ConfigError, match=r"sources\['web'\]\.batch_size"):
        plan_of(LENGTHS, mix="batch", batch_sizes={"web": 2**20 + 1})
    with pytest.raises(ConfigError, match="less than 2"):
        plan_of(LENGTHS, weights=[(0, WEIGHTS), (2**62, WEIGHTS)])


@pytest.mark.parametrize("exhausted", ["stop", "drop"])
def test_an_epoch_of_which_nothing_was_left_is_over_for_the_next_resume_too(
    exhausted: str,
) -> None:
    def loader(batch_size: int, second: float) -> PlannedOrder:
        weights = {"a": 1.0, "b": second}
        options = {"tail": "drop", "exhausted": exhausted, "weights": weights}
        return PlannedOrder(plan_of({"a": 12, "b": 12}, batch_size=batch_size, **options), 0)

    state = state_of(loader(4, 1.0), 0, [0, 1])
    order, epoch = loader(4, 2.0).resumed(state)
    order, epoch = loader(100, 2.0).resumed(state_of(order, epoch, [0]))
    over = state_of(order, epoch, [])  # epochs of the next plan have no batch at all
    counts = over["plan"]["mixture"]["counts"]
    assert (epoch, over["plan"]["mixture"]["first_epoch"]) == (0, 1)
    for second in (1.0, 2.0, 4.0):
        order, epoch = loader(4, second).resumed(over)
        assert epoch == 0
        assert len(order.part(0)) == 0
        assert state_of(order, 1, [])["plan"]["mixture"]["counts"] == counts
