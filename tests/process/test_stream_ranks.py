"""Streams under several ranks: over all ranks, the items that torch's DataLoader gives.

Each rank is a process here of a gloo group with the variables of torchrun. Where a stream splits by
nothing, torch gives every item in every worker of every rank; here each comes once.
"""

from __future__ import annotations

import functools
import io
import multiprocessing
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from swift_loader import SwiftLoader
from tests.ranks import run_ranks

N = 40
WORKERS = 2


class Plain(IterableDataset[int]):
    """Splits by nothing."""

    def __init__(self, first: int = 0, end: int = N) -> None:
        self.first, self.end = first, end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.end))


class ByWorkerInfo(Plain):
    """As torch's documentation has it."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return iter(range(self.first + info.id, self.end, info.num_workers))


class ByVariables(Plain):
    """Asks for its place among workers first, and for its rank then."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        index, count = info.id, info.num_workers
        place, size = int(os.environ["RANK"]), int(os.getenv("WORLD_SIZE", "1"))
        return iter(range(self.first + place * count + index, self.end, count * size))


class ByRankAlone(Plain):
    def __iter__(self) -> Iterator[int]:
        place, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        mine = range(self.first + place, self.end, size)
        info = get_worker_info()
        return iter(mine[info.id :: info.num_workers] if info is not None else mine)


class ByGroup(Plain):
    """As LitData's: asks `torch.distributed`, and worker info."""

    def __iter__(self) -> Iterator[int]:
        place, size = 0, 1
        if dist.is_available() and dist.is_initialized():
            place, size = dist.get_rank(), dist.get_world_size()
        info = get_worker_info()
        assert info is not None
        mine = range(self.first, self.end)[place::size]
        return iter(mine[info.id :: info.num_workers])


class ByVariablesAtSetUp(Plain):
    """As Mosaic's: its world is read where it is built, which may be the training process."""

    def __init__(self, first: int = 0, end: int = N) -> None:
        super().__init__(first, end)
        self.rank = int(os.environ.get("RANK", "0"))
        self.num_ranks = int(os.environ.get("WORLD_SIZE", "1"))

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        mine = range(self.first, self.end)[self.rank :: self.num_ranks]
        return iter(mine[info.id :: info.num_workers])


class LogsItsRank(ByWorkerInfo):
    """Copies the environment, as whoever starts a process may. Nobody sees what it reads there."""

    def __iter__(self) -> Iterator[int]:
        assert "RANK" in dict(os.environ)
        return super().__iter__()


def give_it_its_part(worker_id: int) -> None:
    """torch's documented `worker_init_fn` for streams."""
    info = get_worker_info()
    assert info is not None
    _give_part(info.dataset, info.id, info.num_workers)


def by_its_argument(worker_id: int) -> None:
    """Takes its number from the argument, and the workers' from worker info."""
    info = get_worker_info()
    assert info is not None
    _give_part(info.dataset, worker_id, info.num_workers)


def by_its_argument_alone(worker_id: int) -> None:
    info = get_worker_info()
    assert info is not None
    _give_part(info.dataset, worker_id, WORKERS)


def _give_part(stream: Plain, index: int, count: int) -> None:
    first, end = stream.first, stream.end
    share = -(-(end - first) // count)
    stream.first = first + index * share
    stream.end = min(stream.first + share, end)


def web(folder: str, *splitters: str) -> Any:
    import webdataset as wds

    urls = f"{folder}/s-{{0..7}}.tar"
    stages = [getattr(wds, name) for name in splitters]
    return wds.DataPipeline(
        wds.SimpleShardList(urls), *stages, wds.tarfile_to_samples(), wds.map(_index)
    )


def web_fluid(folder: str) -> Any:
    import webdataset as wds

    return wds.WebDataset(
        f"{folder}/s-{{0..7}}.tar", shardshuffle=False, nodesplitter=wds.split_by_node
    ).map(_index)


def _index(sample: dict[str, Any]) -> int:
    return int(sample["txt"])


def hugging_face(shards: int) -> Any:
    import datasets

    return datasets.Dataset.from_dict({"x": list(range(N))}).to_iterable_dataset(num_shards=shards)


def hugging_face_split(shards: int) -> Any:
    from datasets.distributed import split_dataset_by_node

    return split_dataset_by_node(hugging_face(shards), dist.get_rank(), dist.get_world_size())


def pipe() -> Any:
    return IterableWrapper(range(N)).sharding_filter()


def write_shards(folder: Path) -> None:
    for shard in range(8):
        with tarfile.open(folder / f"s-{shard}.tar", "w") as tar:
            for i in range(shard * 5, shard * 5 + 5):
                data = str(i).encode()
                member = tarfile.TarInfo(f"{i:06d}.txt")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


@contextmanager
def variables_of(rank: int, size: int) -> Iterator[None]:
    names = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    os.environ.update(names)
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


# What is compared: how the stream is made; what else the loaders get; whether torch gives all to
# each rank, or to each worker, and this loader each once.
Case = tuple[Callable[[], Any], dict[str, Any], bool]


def cases(folder: str) -> dict[str, Case]:
    part = functools.partial
    found: dict[str, Case] = {
        "plain": (Plain, {}, True),
        "worker info": (ByWorkerInfo, {}, True),
        "worker_init_fn": (Plain, {"worker_init_fn": give_it_its_part}, True),
        "argument": (Plain, {"worker_init_fn": by_its_argument}, False),
        "argument alone": (Plain, {"worker_init_fn": by_its_argument_alone}, False),
        "variables": (ByVariables, {}, False),
        "rank first": (ByRankAlone, {}, False),
        "group": (ByGroup, {}, False),
        "variables at set-up": (ByVariablesAtSetUp, {}, False),
        "copies variables": (LogsItsRank, {}, False),
        "chain": (lambda: ChainDataset([Plain(0, 20), ByWorkerInfo(20, N)]), {}, True),
        "chain by rank": (lambda: ChainDataset([ByVariables(0, 20), ByGroup(20, N)]), {}, False),
        "pipes": (pipe, {}, False),
    }
    if find_spec("webdataset") is not None:  # asked for without an import, which takes seconds
        found |= {
            "web, both": (part(web, folder, "split_by_node", "split_by_worker"), {}, False),
            "web, fluid": (part(web_fluid, folder), {}, False),
            "web, node": (part(web, folder, "split_by_node"), {}, False),
            "web, worker": (part(web, folder, "split_by_worker"), {}, True),
            "web, none": (part(web, folder), {}, True),
        }
    if find_spec("datasets") is not None:
        for shards in (1, 3, 8):
            found[f"HF, {shards} shards"] = (part(hugging_face, shards), {}, True)
            found[f"HF split, {shards} shards"] = (part(hugging_face_split, shards), {}, False)
    return found


def both(rank: int, size: int, folder: str, names: list[str]) -> dict[str, Any]:
    """The items of this rank: torch's, this loader's, and this loader's with a stream it builds."""
    multiprocessing.current_process().daemon = False  # it may have workers of torch's
    found = {}
    with variables_of(rank, size):
        for name in names:
            make, options, _ = cases(folder)[name]
            # As by default where nothing else was set: this process was started in another way.
            options["multiprocessing_context"] = "fork"
            theirs = items(DataLoader(make(), batch_size=4, num_workers=WORKERS, **options))
            del options["multiprocessing_context"]
            with SwiftLoader.from_dataset(
                make(), 4, size, WORKERS, validate=False, **options
            ) as loader:
                loader.start(rank)
                ours = items(loader)
                again = items(loader) if name == "variables" else ours
            found[name] = theirs, ours, again
    return found


def items(loader: Any) -> list[int]:
    batches = [batch["x"] if isinstance(batch, dict) else batch for batch in loader]
    return [int(i) for batch in batches for i in batch]


def check(size: int, folder: Path, names: list[str]) -> None:
    write_shards(folder)
    ranks = run_ranks(
        size, both, size, str(folder), names, timeout_s=280 if len(names) < 8 else 1100
    )
    for rank in ranks:
        assert isinstance(rank, dict), rank
    wrong = {}
    for name in names:
        _, _, each_once = cases(str(folder))[name]
        theirs, ours, again = (sorted(i for rank in ranks for i in rank[name][n]) for n in range(3))
        assert set(theirs) == set(range(N)), name
        expected = list(range(N)) if each_once else theirs
        if ours != expected or again != expected:
            wrong[name] = {"torch": theirs, "ours": ours, "again": again}
    assert not wrong


# The others are compared without processes, in tests/unit/worker/test_split.py.
FEW = ["worker_init_fn", "group", "web, fluid", "HF split, 3 shards", "pipes"]


@pytest.mark.timeout(300)
def test_two_ranks_get_what_torch_gives_them(tmp_path: Path) -> None:
    check(2, tmp_path, [name for name in FEW if name in cases(str(tmp_path))])


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_get_what_torch_gives_them(size: int, tmp_path: Path) -> None:
    check(size, tmp_path, list(cases(str(tmp_path))))
