"""Who splits a stream, worker by worker in one process: over all ranks, the items that torch gives.

A worker of torch is what sets worker info, runs `worker_init_fn` and iterates.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import get_rank, get_world_size
from torch.utils.data import ChainDataset, IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from swift_loader import ConfigError, StateError
from swift_loader.loader.who_splits import Decision, Look
from swift_loader.plan import Plan
from swift_loader.worker.place import Place
from swift_loader.worker.rank_watch import tell_group
from swift_loader.worker.shard import BeginAgain, Shard, StreamInfo
from swift_loader.worker.split import Split
from tests.process import test_stream_ranks as streams

PLAN = Plan(2**62, 1, 1, False, 0, 7)

WORKERS = 2
N = streams.N


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kind = type(os.environ)
    monkeypatch.setattr(torch_worker, "_worker_info", None)
    with group_as_it_was():
        yield
    os.environ.__class__ = kind


@contextmanager
def group_as_it_was() -> Iterator[None]:
    """Undoes what `tell_group` does."""
    functions = dist.is_initialized, dist.get_rank, dist.get_world_size
    codes, world = [function.__code__ for function in functions], dist.group.WORLD
    try:
        yield
    finally:
        for function, code in zip(functions, codes, strict=True):
            function.__code__ = code
        setattr(dist.group, "WORLD", world)  # noqa: B010


class Worker:
    """What a worker's process does, without the process."""

    def __init__(
        self, make: Callable[[], Any], init: Any, place: Place, index: int, by_class: bool
    ) -> None:
        given = None if by_class else make()
        if place.stream_split == "auto" and not place.split_why:
            place = told(place, look(make, init, by_class).decided(place.nb_consumer))
        self._make = make if by_class else lambda: copy.deepcopy(given)
        self._init, self._index = init, index
        self.split = Split(place, index)
        dataset = self._build()
        self.split.look_at(dataset, {})
        self.shard = Shard(dataset, self.split, self._build)

    def _build(self) -> Any:
        torch_worker._worker_info = None
        with self.split.watching():
            dataset = self._make()
            torch_worker._worker_info = StreamInfo(self.split, 0, dataset, at_birth=True)
            if self._init is not None:
                self._init(self._index)
        return dataset

    def items(self, epoch: int = 0) -> list[int]:
        try:
            self.shard.begin(epoch, PLAN, None)
            return [number(item) for item in self.shard]
        except BeginAgain:
            return self.items(epoch)


def look(make: Callable[[], Any], init: Any, by_class: bool) -> Look:
    return Look.at(make if by_class else make(), {}, init)


def told(place: Place, decision: Decision) -> Place:
    """As the training process tells its workers."""
    by, why, in_doubt = decision.by, decision.why, decision.in_doubt
    return replace(place, stream_split=by, split_why=why, split_in_doubt=in_doubt)


def number(item: Any) -> int:
    return int(item["x"]) if isinstance(item, dict) else int(item)


def of_torch(make: Callable[[], Any], init: Any, index: int, by_class: bool) -> list[int]:
    torch_worker._worker_info = None
    dataset = make()
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=index, num_workers=WORKERS, seed=0, dataset=dataset
    )
    if init is not None:
        init(index)
    return [number(item) for item in dataset]


@contextmanager
def as_rank(rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched, group_as_it_was():
        for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size}.items():
            patched.setenv(name, str(value))
        tell_group(rank, size)
        yield


def of_all(
    size: int, make: Callable[[], Any], init: Any, monkeypatch: pytest.MonkeyPatch, by_class: bool
) -> tuple[list[int], list[int], list[Split]]:
    """Torch's items and ours, of all workers of all ranks; and what ours have decided."""
    theirs, ours, again, splits, looks = [], [], [], [], []
    for rank in range(size):
        with as_rank(rank, size, monkeypatch):
            looks.append(look(make, init, by_class))
    for rank in range(size):
        with as_rank(rank, size, monkeypatch):
            for index in range(WORKERS):
                theirs += of_torch(make, init, index, by_class)
                place = Place(rank, size, WORKERS, 0, None, group=(rank, size))
                place = told(place, looks[rank].decided(size, looks))
                worker = Worker(make, init, place, index, by_class)
                ours += worker.items()
                again += worker.items(1)
                splits.append(worker.split)
    assert sorted(again) == sorted(ours)
    return sorted(theirs), sorted(ours), splits


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("shards")
    streams.write_shards(folder)
    return str(folder)


NAMES = [name for name in streams.cases("") if name != "pipes"]  # torch shares those out elsewhere


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_items_of_all_ranks_are_those_of_torch(
    name: str, size: int, shards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, options, each_once = streams.cases(shards)[name]
    init = options.get("worker_init_fn")
    for by_class in (False, True):
        theirs, ours, splits = of_all(size, make, init, monkeypatch, by_class)
        assert set(theirs) == set(range(N))
        assert ours == (list(range(N)) if each_once else theirs)
        assert len({split.by for split in splits}) == 1


class KnowsItsRank(IterableDataset[int]):
    def __init__(self, rank: int = 0) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return iter(range(info.id, N, info.num_workers))


class ByGroupObject(streams.Plain):
    def __iter__(self) -> Iterator[int]:
        info, world = get_worker_info(), dist.group.WORLD
        assert info is not None
        assert world is not None
        mine = range(N)[world.rank() :: world.size()]
        return iter(mine[info.id :: info.num_workers])


class ByNames(streams.Plain):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return iter(range(N)[get_rank() :: get_world_size()][info.id :: info.num_workers])


@pytest.mark.parametrize("make", [ByNames, ByGroupObject])
def test_names_that_were_imported_before_and_the_group_are_watched(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for rank in range(2):
        with as_rank(rank, 2, monkeypatch):
            for index in range(WORKERS):
                split = Split(Place(rank, 2, WORKERS, 0, None, group=(rank, 2)), index)
                shard = Shard(make(), split, make)
                found += items_of(shard)
                assert split.by == "workers"
                assert "get_rank(), torch.distributed.get_world_size()" in split.why
                assert split.alone  # nobody told it: other workers may not ask, so it warns
                assert split.in_doubt
    assert sorted(found) == list(range(N))


def items_of(shard: Shard) -> list[int]:
    try:
        shard.begin(0, PLAN, None)
        return list(map(number, shard))
    except BeginAgain:
        return items_of(shard)


class AsksLate(streams.ByWorkerInfo):
    """In a way that is not to be seen in its code."""

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        assert all(os.environ[name[::-1]] for name in ("KNAR", "EZIS_DLROW"))


class AsksForOneThing(streams.ByWorkerInfo):
    def __iter__(self) -> Iterator[int]:
        os.environ.get("LOCAL_RANK")
        return super().__iter__()


def worker_of(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, option: Any) -> Worker:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    return Worker(make, None, Place(1, 2, WORKERS, 0, None, stream_split=option), 0, True)


@pytest.mark.parametrize(
    ("make", "by", "in_doubt", "why"),
    [
        (streams.Plain, "ranks", False, "does not split"),
        (streams.ByVariables, "workers", False, "RANK, WORLD_SIZE"),
        (AsksForOneThing, "workers", True, "LOCAL_RANK"),
        (KnowsItsRank, "workers", True, "it knows rank"),
        (lambda: ChainDataset([streams.Plain(), KnowsItsRank()]), "workers", True, "knows rank"),
    ],
)
def test_decision_says_why(
    make: Any, by: str, in_doubt: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = worker_of(make, monkeypatch, "auto")
    worker.items()
    assert (worker.split.by, worker.split.in_doubt) == (by, in_doubt)
    assert why in worker.split.story()


def test_option_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    by_workers = worker_of(streams.ByWorkerInfo, monkeypatch, "workers").items()
    assert by_workers == list(range(0, N, 2))
    by_ranks = worker_of(streams.ByVariables, monkeypatch, "ranks").items()
    assert len(by_ranks) == N // 8  # split twice, as it was told


def test_stream_that_asks_for_its_rank_after_the_first_item_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="stream_split='workers'"):
        worker_of(AsksLate, monkeypatch, "auto").items()
    assert worker_of(AsksLate, monkeypatch, "ranks").items()


def test_rank_that_no_launcher_has_set_splits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    found = []
    for rank in range(2):
        for index in range(WORKERS):
            place = Place(rank, 2, WORKERS, 0, None)
            found += Worker(streams.ByGroup, None, place, index, True).items()
    assert sorted(found) == list(range(N))


def test_state_of_another_splitting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_of(streams.Plain, monkeypatch, "ranks")
    with pytest.raises(StateError, match=r"stream_split was 'workers'.* is now 'ranks'"):
        worker.split.resumed("workers")


def test_seed_of_worker_info_is_the_workers_own() -> None:
    infos = [StreamInfo(Split(Place(0, 1, 3, 0, None), i), 10, None) for i in range(3)]
    assert [info.seed for info in infos] == [10, 11, 12]
    assert [info.seed - info.id for info in infos] == [10, 10, 10]
