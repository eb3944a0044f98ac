"""Streams that were made for their rank, or find it out in a way that nobody sees: none is lost.

Each comes as torch's DataLoader gives it, over two ranks with two workers each.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import get_rank, get_world_size
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from swift_loader import SwiftLoader
from tests.process.test_stream_ranks import WORKERS, N, hugging_face, items, variables_of
from tests.ranks import run_ranks


class Part(IterableDataset[int]):
    """Worker info splits what it was given."""

    def __init__(self, numbers: range = range(N)) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return iter(self.numbers[info.id :: info.num_workers])


class ByVariablesWhereItIsMade(Part):
    def __init__(self) -> None:
        place, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        super().__init__(range(place, N, size))


class ByGroupWhereItIsMade(Part):
    def __init__(self) -> None:
        super().__init__(range(dist.get_rank(), N, dist.get_world_size()))


class ByCopiedVariables(Part):
    def __iter__(self) -> Iterator[int]:
        found = os.environ.copy()
        self.numbers = range(N)[int(found["RANK"]) :: int(found["WORLD_SIZE"])]
        return super().__iter__()


class ByNames(Part):
    def __iter__(self) -> Iterator[int]:
        self.numbers = range(get_rank(), N, get_world_size())
        return super().__iter__()


class ByGroupObject(Part):
    def __iter__(self) -> Iterator[int]:
        world = dist.group.WORLD
        assert world is not None
        self.numbers = range(world.rank(), N, world.size())
        return super().__iter__()


class LogsItsRankOnce(Part):
    """The workers are not told the same; they must split in the same way."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        if info.id == 0:
            assert os.environ["RANK"] < os.environ["WORLD_SIZE"]
        return super().__iter__()


class Between(IterableDataset[int]):
    def __init__(self) -> None:
        self.first, self.end = 0, N

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.end))


def give_part(of: int, parts: int, worker_id: int) -> None:
    info = get_worker_info()
    assert info is not None
    share = N // (parts * info.num_workers)
    info.dataset.first = (of * info.num_workers + info.id) * share
    info.dataset.end = info.dataset.first + share


def sliced() -> Part:
    return Part(range(N)[dist.get_rank() :: dist.get_world_size()])


def sharded() -> Any:
    return hugging_face(8).shard(num_shards=dist.get_world_size(), index=dist.get_rank())


def init() -> dict[str, Any]:
    return {"worker_init_fn": functools.partial(give_part, dist.get_rank(), dist.get_world_size())}


CASES: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "sliced": (sliced, dict),
    "sliced later": (sliced, dict),
    "partial": (Between, init),
    "variables": (ByVariablesWhereItIsMade, dict),
    "group": (ByGroupWhereItIsMade, dict),
    "names": (ByNames, dict),
    "names, forked": (ByNames, dict),
    "group object": (ByGroupObject, dict),
    "copied variables": (ByCopiedVariables, dict),
    "logs once": (LogsItsRankOnce, dict),
}
if find_spec("datasets") is not None:
    CASES["HF shard"] = sharded, dict


OURS: dict[str, dict[str, Any]] = {"names, forked": {"start_method": "fork"}}


def both(rank: int, size: int, names: list[str]) -> dict[str, Any]:
    """Torch's items, and this loader's."""
    multiprocessing.current_process().daemon = False  # it may have workers of torch's
    found = {}
    with variables_of(rank, size):
        for name in names:
            make, options = CASES[name]
            torch_loader = DataLoader(
                make(), 4, num_workers=WORKERS, multiprocessing_context="fork", **options()
            )
            theirs = items(torch_loader)
            own = {"nb_consumer": size, "num_workers": WORKERS, **options(), **OURS.get(name, {})}
            stream = Part() if name == "sliced later" else make()
            with SwiftLoader(stream, batch_size=4, **own) as loader:
                if name == "sliced later":
                    stream.numbers = make().numbers
                loader.start(rank)
                ours = items(loader)
            found[name] = theirs, ours
    return found


def check(names: list[str]) -> None:
    ranks = run_ranks(2, both, 2, names, timeout_s=280)
    for rank in ranks:
        assert isinstance(rank, dict), rank
    for name in names:
        theirs, ours = (sorted(i for rank in ranks for i in rank[name][n]) for n in range(2))
        assert set(theirs) == set(range(N)), name
        assert ours == theirs, name


@pytest.mark.timeout(300)
def test_nothing_is_lost_of_a_stream_that_was_made_for_its_rank() -> None:
    check(["sliced", "sliced later", "partial", "logs once", "names"])


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_stream_of_a_rank_gives_what_torch_gives(name: str) -> None:
    check([name])
