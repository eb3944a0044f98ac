"""Epochs and states of a worker's part of a stream, without processes."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from swift_loader import StateError
from swift_loader.order.part import Taken
from swift_loader.order.stream import StreamOrder
from swift_loader.plan import Plan
from swift_loader.worker.place import Place
from swift_loader.worker.shard import Shard, StreamInfo
from swift_loader.worker.split import Split

PLAN = Plan(2**62, 1, 1, False, 0, 7)

N = 7


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch_worker, "_worker_info", None)
    kind = type(os.environ)
    yield
    os.environ.__class__ = kind


class CountsEpochs(IterableDataset[Any]):
    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        return iter([(self.epoch, i) for i in range(N)])


class Itself(CountsEpochs):
    """Its own iterator, which can't load a state before `__iter__`."""

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        self.left = list(range(N))
        return self

    def __next__(self) -> Any:
        if not self.left:
            raise StopIteration
        return self.epoch, self.left.pop(0)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "left": len(self.left)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        del self.left[: len(self.left) - state["left"]]


class Resets(CountsEpochs):
    """Goes on from its state, which it resets at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += self.at == 0
        while self.at < N:
            self.at += 1
            yield self.epoch, self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


class KeepsItsEnd(Resets):
    """Stands at its end until it is begun again."""

    def __iter__(self) -> Iterator[Any]:
        if self.at in (0, N):
            self.epoch, self.at = self.epoch + 1, 0
        while self.at < N:
            self.at += 1
            yield self.epoch, self.at - 1


class OfItsIterator(CountsEpochs):
    """Only its iterator keeps a state."""

    def __iter__(self) -> Iterator[Any]:
        return _Walk()


class _Walk:
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.at == N:
            raise StopIteration
        self.at += 1
        return 0, self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def shard_of(make: Callable[[], Any]) -> Shard:
    return Shard(make(), Split(Place(0, 1, 1, 0, None), 0), make)


def epoch_of(shard: Shard, epoch: int, saved: bytes = b"") -> list[Any]:
    shard.begin(epoch, PLAN, json.loads(saved) if saved else None)
    return list(shard)


@pytest.mark.parametrize("make", [CountsEpochs, Itself, Resets, KeepsItsEnd])
def test_stream_is_begun_once_an_epoch(make: Any) -> None:
    shard = shard_of(make)
    for epoch in range(3):
        assert epoch_of(shard, epoch) == [(epoch + 1, i) for i in range(N)]


@pytest.mark.parametrize(
    "make", [CountsEpochs, Itself, Resets, KeepsItsEnd, OfItsIterator, lambda: iter(range(N))]
)
def test_epoch_after_one_that_was_left_is_whole(make: Any) -> None:
    shard = shard_of(make)
    for epoch in range(3):
        shard.begin(epoch, PLAN, None)
        next(shard)
        next(shard)
    assert len(epoch_of(shard, 3)) == N
    assert len(epoch_of(shard, 4)) == N


@pytest.mark.parametrize(
    ("make", "taken"),
    # One that stands at its end begins the next epoch when it is iterated: it can't tell.
    [(make, n) for make in (Itself, Resets, OfItsIterator) for n in range(N + 1)]
    + [(KeepsItsEnd, n) for n in range(N)],
)
def test_loaded_state_goes_on_with_the_rest_and_the_next_epoch(make: Any, taken: int) -> None:
    shard = shard_of(make)
    epoch_of(shard, 0)
    shard.begin(1, PLAN, None)
    first = [next(shard) for _ in range(taken)]
    state = shard.state(taken)
    rest, following = list(shard), epoch_of(shard, 2)
    other = shard_of(make)
    assert epoch_of(other, 1, state) == rest
    assert epoch_of(other, 2) == following
    assert len(first) + len(rest) == N


@pytest.mark.parametrize("make", [Itself, Resets, KeepsItsEnd, OfItsIterator])
def test_state_of_the_end_keeps_what_the_stream_counts(make: Any) -> None:
    shard = shard_of(make)
    epoch_of(shard, 0)
    epoch_of(shard, 1)
    state = shard.state(0, over=True)
    following = epoch_of(shard, 2)
    other = shard_of(make)
    assert epoch_of(other, 2, state) == following
    assert len(following) == N
    # A resumed shard that was not read on tells the same.
    third = shard_of(make)
    third.begin(2, PLAN, json.loads(state))
    assert json.loads(third.state(0)) == {**json.loads(state), "over": False}


class Odd(Resets):
    def state_dict(self) -> Any:
        return {"rng": object()}


def test_state_that_is_no_data_is_an_error_only_where_it_is_asked_for() -> None:
    shard = shard_of(Odd)
    shard.begin(0, PLAN, None)
    next(shard)
    order = StreamOrder(Plan(2**62, 1, 1, False, 0, 0, "balanced"), 0, 1)
    taken = Taken(order.part(0))
    taken.shards[0] = shard.state(1)
    with pytest.raises(StateError, match=r"\['rng'\] is a builtins\.object"):
        order.capture(taken)


class Refuses(Resets):
    def load_state_dict(self, state: dict[str, int]) -> None:
        raise KeyError("cursor")


def test_state_that_the_stream_refuses_is_a_state_error() -> None:
    shard = shard_of(Refuses)
    shard.begin(0, PLAN, None)
    next(shard)
    with pytest.raises(StateError, match=r"Refuses\.load_state_dict refused.*KeyError: 'cursor'"):
        epoch_of(shard_of(Refuses), 0, shard.state(1))


def test_mutated_states_of_streams_are_refused_by_name() -> None:
    shard = shard_of(Resets)
    shard.begin(0, PLAN, None)
    next(shard)
    order = StreamOrder(Plan(2**62, 1, 1, False, 0, 0, "balanced"), 0, 1)
    taken = Taken(order.part(0))
    taken.add(0)
    taken.shards[0] = shard.state(1)
    state = order.capture(taken)
    assert order.resumed(json.loads(json.dumps(state)))[1] == 0
    wrong: list[tuple[str, Any]] = [
        ("batch", 2), ("batch", -1), ("batch", "1"), ("position", 2**70), ("position", None),
        ("ended", 1), ("over", True), ("split", "me"), ("dataset", {}), ("dataset", [1, 2]),
        ("dataset", [{"$what": 1}]), ("iterator", "gASV"), ("iterator", [{"$array": "x"}]),
    ]  # fmt: skip
    for name, value in wrong:
        changed = copy.deepcopy(state)
        changed["shards"]["0"][name] = value
        with pytest.raises(StateError, match="shards"):
            order.resumed(changed)
    for shards in (None, [], {"1": {}}, {"0": "gASVCAAAAAAAAACMBHRydWWULg=="}, {"0": {}}):
        with pytest.raises(StateError, match="shards"):
            order.resumed({**state, "shards": shards})


def test_worker_info_of_a_stream_has_all_that_torchs_has() -> None:
    theirs = torch_worker.WorkerInfo(id=1, num_workers=2, seed=8, dataset=None)  # type: ignore[arg-type]
    ours = StreamInfo(Split(Place(0, 1, 2, 7, None), 1), 7, None)
    names = [name for name in dir(theirs) if not name.startswith("_")]
    assert {"id", "num_workers", "seed", "dataset"} <= {*names}
    assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
