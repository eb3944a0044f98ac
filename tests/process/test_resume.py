"""Saved anywhere, resumed anywhere: what comes is what would have come, or what was left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swift_loader import ClosedError, StateError, SwiftLoader
from swift_loader.loader.handing_on import state_at
from tests import datasets
from tests.conformance import indices_of, plan_of

pytestmark = pytest.mark.usefixtures("nothing_left")

N = 23
OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "nearby_shuffle": 0, "seed": 3}
STEPS = 6  # in an epoch of N samples


def loader_of(dataset: type = datasets.Drawn, n: int = N, **changes: Any) -> SwiftLoader:
    return SwiftLoader(dataset, {"n": n}, **{**OPTIONS, "worker_per_consumer": 2, **changes})


def plain(batch: dict[str, Any]) -> tuple[Any, ...]:
    return batch["index"].tolist(), batch["draws"].tolist(), batch["text"]


def endless(loader: SwiftLoader) -> Iterator[tuple[Any, ...]]:
    """Batch after batch over all epochs. Yields, so that the end of an epoch can be stood at."""
    while True:
        yield from (plain(batch) for batch in loader)


def start(loader: SwiftLoader, staged: bool, consumer: int = 0) -> None:
    loader.start(consumer, to_device=(lambda batch, device: batch) if staged else None)


def through_json(state: Any) -> Any:
    text = json.dumps(state)
    assert len(text) < 2000
    return json.loads(text)


def take(batches: Iterator[Any], count: int) -> list[Any]:
    return [next(batches) for _ in range(count)]


@pytest.fixture(scope="module")
def undisturbed() -> list[tuple[Any, ...]]:
    """Three epochs."""
    with loader_of() as loader:
        return take(endless(loader), 3 * STEPS)


@pytest.mark.parametrize(
    ("staged", "in_order"),
    [
        (True, True),
        (False, False),
        pytest.param(False, True, marks=pytest.mark.soak),
        pytest.param(True, False, marks=pytest.mark.soak),
    ],
)
def test_rest_of_the_sequence_is_that_of_the_undisturbed_run(
    undisturbed: list[Any], staged: bool, in_order: bool
) -> None:
    for steps in (0, 1, STEPS - 1, STEPS, STEPS + 2):
        with loader_of(in_order=in_order, worker_per_consumer=3) as loader:
            start(loader, staged)
            got = take(endless(loader), steps)
            state = through_json(loader.state_dict())
            assert loader.state_dict() == state  # asking changes nothing
        with loader_of(in_order=in_order, max_nb_batch_on_device=3) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            start(loader, staged)
            assert loader.state_dict() == state
            rest = endless(loader)
            got += take(rest, 2 * STEPS - steps)
            first, second = got[:STEPS], got[STEPS:]
            if not in_order:
                first, second = sorted(first), sorted(second)
            assert first == (undisturbed if in_order else sorted(undisturbed[:STEPS]))[:STEPS]
            want = undisturbed[STEPS : 2 * STEPS]
            assert second == (want if in_order else sorted(want))


@pytest.mark.parametrize("staged", [False, True])
def test_saved_and_resumed_at_every_step_in_a_row(undisturbed: list[Any], staged: bool) -> None:
    state: Any = None
    got = []
    for _ in range(STEPS + 3):
        with loader_of() as loader:
            if state is not None:
                loader.load_state_dict(state)
            start(loader, staged)
            got += take(endless(loader), 1)
            state = through_json(loader.state_dict())
    assert got == undisturbed[: STEPS + 3]


@pytest.mark.parametrize("staged", [False, True])
def test_state_between_iter_and_the_first_batch_is_that_before(
    undisturbed: list[Any], staged: bool
) -> None:
    with loader_of() as loader:
        start(loader, staged)
        list(loader)
        before = loader.state_dict()
        iterator = iter(loader)
        assert loader.state_dict() == before
        next(iterator)
        assert loader.state_dict() != before
    assert (before["epoch"], before["delivered"]) == (1, 0)


class Counting(torch.utils.data.IterableDataset[int]):
    """A stream."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n))


@pytest.mark.parametrize("kind", ["plan", "sampler", "sampler without a length", "stream"])
def test_last_batch_leaves_nothing_of_its_epoch_and_stop_iteration_begins_the_next(
    kind: str,
) -> None:
    """As with torchdata's `StatefulDataLoader`: the epoch ends with `StopIteration`."""

    def build() -> SwiftLoader:
        if kind == "stream":
            return SwiftLoader(Counting, {"n": 10}, batch_size=4, worker_per_consumer=2)
        orders = {"sampler": range(10), "sampler without a length": Counting(10)}
        return SwiftLoader(datasets.Indices, {"n": 10}, batch_size=4, sampler=orders.get(kind))

    with build() as loader:
        whole = [batch.tolist() for batch in loader]
        iterator = iter(loader)
        take(iterator, len(whole))
        last = through_json(loader.state_dict())
        with pytest.raises(StopIteration):
            next(iterator)
        after = through_json(loader.state_dict())
    assert (last["epoch"], after["epoch"]) == (1, 2)
    for state, want in ((last, [[], whole]), (after, [whole, whole])):
        with build() as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert [[batch.tolist() for batch in loader] for _ in range(2)] == want
            assert loader.state_dict()["epoch"] == state["epoch"] + 2


def test_state_at_a_batch_is_not_told_of_batches_out_of_order() -> None:
    with loader_of(in_order=False) as loader:
        take(iter(loader), 2)
        with pytest.raises(ClosedError, match="in_order=False, only state_dict"):
            state_at(loader, 0, 2)


def test_state_after_a_break_keeps_the_rest_of_the_epoch(undisturbed: list[Any]) -> None:
    with loader_of() as loader:
        for count, _ in enumerate(loader, 1):
            if count == 2:
                break
        state = loader.state_dict()
    with loader_of() as loader:
        loader.load_state_dict(state)
        assert len(loader) == STEPS - 2
        assert [plain(batch) for batch in loader] == undisturbed[2:STEPS]
        assert len(loader) == STEPS
        assert [plain(batch) for batch in loader] == undisturbed[STEPS : 2 * STEPS]


def test_state_after_set_epoch_is_that_of_its_beginning() -> None:
    with loader_of() as loader:
        list(loader)
        loader.set_epoch(7)
        assert loader.state_dict()["epoch"] == 7
        want = [plain(batch) for batch in loader]
        loader.set_epoch(7)
        state = loader.state_dict()
    with loader_of() as loader:
        loader.load_state_dict(state)
        assert [plain(batch) for batch in loader] == want


@pytest.mark.parametrize("staged", [False, True])
def test_state_may_be_loaded_while_the_loader_runs(undisturbed: list[Any], staged: bool) -> None:
    with loader_of() as loader:
        start(loader, staged)
        for steps in (4, 1, 2, 2, 5):
            batches = iter(loader)
            take(batches, 1)
            loader.set_epoch(0)
            source = endless(loader)
            take(source, steps)
            state = loader.state_dict()
            take(source, 2)
            loader.load_state_dict(state)
            with pytest.raises(ClosedError, match="state was loaded"):
                next(source)
            assert loader.state_dict() == state
            assert take(endless(loader), STEPS) == undisturbed[steps : steps + STEPS]
            loader.load_state_dict({**state, "epoch": 0, "delivered": 0, "ahead": []})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({"nb_consumer": 2}, {"nb_consumer": 3}, id="2 consumers, then 3"),
        pytest.param({"nb_consumer": 3}, {"nb_consumer": 1}, id="3 consumers, then 1"),
        pytest.param({}, {"batch_size": 3}, id="smaller batches"),
        pytest.param({"nb_consumer": 2}, {"nb_consumer": 2, "batch_size": 5}, id="larger batches"),
        pytest.param({}, {"worker_per_consumer": 3}, id="more workers"),
        pytest.param({"tail": "drop"}, {"tail": "balanced"}, id="another tail"),
    ],
)
@pytest.mark.parametrize("equal", [True, False])
def test_another_set_up_gets_what_was_left_once(
    before: dict[str, Any], after: dict[str, Any], equal: bool
) -> None:
    seen: list[int] = []
    states = []
    for consumer in range(before.get("nb_consumer", 1)):
        with loader_of(datasets.Numbers, n=47, **before) as loader:
            loader.start(consumer)
            steps = 2 if equal else 1 + consumer
            seen += chain.from_iterable(indices_of(b) for b in take(iter(loader), steps))
            states.append(through_json(loader.state_dict()))
    rest: list[int] = []
    later: list[int] = []
    lengths = set()
    for consumer in range(after.get("nb_consumer", 1)):
        with loader_of(datasets.Numbers, n=47, **after) as loader:
            loader.load_state_dict(states[-1] if equal else states)
            loader.start(consumer)
            length = len(loader)
            batches = [indices_of(batch) for batch in loader]
            assert len(batches) == length
            lengths.add(length)
            rest += chain.from_iterable(batches)
            later += chain.from_iterable(indices_of(batch) for batch in loader)
    assert len(lengths) == 1  # equal steps, also in what was left
    assert sorted(seen + rest) == list(range(47))
    assert sorted(later) == list(range(47))


def test_state_with_batches_out_of_order_needs_the_states_of_all(tmp_path: Path) -> None:
    options: dict[str, Any] = {"worker_per_consumer": 2, "batch_size": 4, "shuffle": False}
    states = []
    for consumer in range(2):
        with SwiftLoader(datasets.Numbers, {"n": 88}, **options, nb_consumer=2) as alike:
            first = int(plan_of(alike).batch(0, consumer, 0)[0])
        with SwiftLoader(
            datasets.Hangs,
            {"n": 88, "at": first, "folder": tmp_path, "always": True},
            **options,
            nb_consumer=2,
            in_order=False,
            validate=False,
        ) as loader:
            loader.start(consumer)
            next(iter(loader))  # not the first, which never comes
            state = loader.state_dict()
            assert state["ahead"]
            states.append(state)
    with SwiftLoader(datasets.Numbers, {"n": 88}, **options) as loader:
        with pytest.raises(StateError, match="list of the states of all"):
            loader.load_state_dict(states[0])
        loader.load_state_dict(states)
        left = [i for batch in loader for i in indices_of(batch)]
    assert len(set(left)) == len(left) < 88


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"n": N + 1}, "nb_samples"),
        ({"seed": 4}, "seed"),
        ({"shuffle": False}, "shuffle"),
        ({"nearby_shuffle": 8}, "nearby_shuffle"),
    ],
)
def test_state_of_another_run_is_refused(
    changes: dict[str, Any], name: str, validate: bool
) -> None:
    with loader_of() as loader:
        next(iter(loader))
        state = loader.state_dict()
    # Where the length is known only when the workers have it, starting refuses.
    with loader_of(**changes, validate=validate) as other, pytest.raises(StateError, match=name):
        other.load_state_dict(state)
        other.start(0)


@pytest.mark.parametrize("state", [None, 3, {}, [], {"version": 99}, [{}]])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with loader_of() as loader:
        with pytest.raises(StateError):
            loader.load_state_dict(state)
        assert len(list(loader)) == STEPS  # and the loader is as it was


setups = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 7),
        "nb_consumer": st.integers(1, 3),
        "worker_per_consumer": st.integers(1, 2),
    }
)


@pytest.mark.timeout(240)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(setups, setups, st.integers(0, 5))
def test_any_set_up_after_any_other_gets_what_was_left(
    before: dict[str, Any], after: dict[str, Any], steps: int
) -> None:
    def consume(setup: dict[str, Any], state: Any, most: int | None) -> tuple[list[int], Any]:
        got: list[int] = []
        for consumer in range(setup["nb_consumer"]):
            with loader_of(datasets.Numbers, **setup) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                loader.start(consumer)
                for count, batch in enumerate(loader, 1):
                    got += indices_of(batch)
                    if count == most:
                        break
                last = loader.state_dict()
        return got, last

    first, state = consume(before, None, steps) if steps else ([], None)
    if state is not None and state["epoch"] == 1:  # the whole epoch was consumed
        assert sorted(first) == list(range(N))
        first = []
    rest, _ = consume(after, state, None)
    assert sorted(first + rest) == list(range(N))
