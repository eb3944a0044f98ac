"""What every pipe keeps: its functional name, length, reset, copies, and the seeds of random ones.

One table; a pipe that is not in it fails `test_every_functional_name_is_in_the_table`.
"""

from __future__ import annotations

import inspect
import io
import itertools
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dill
import pytest
import torch
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from swift_loader.dataloader2.graph import clone
from swift_loader.dataloader2.iter import IterableWrapper as Wrap
from swift_loader.dataloader2.iter import SampleMultiplexer
from swift_loader.dataloader2.map import SequenceWrapper
from swift_loader.dataloader2.registry import registered_by_us


@dataclass(frozen=True)
class Case:
    make: Callable[[], Any]
    expected: list[Any] | None  # None: random, any order
    length: int | None
    names: tuple[str, ...]


class Texts(IterDataPipe[tuple[str, Any]]):
    """Fresh streams at each iteration."""

    def __init__(self, *texts: str | bytes) -> None:
        self.texts = texts

    def __iter__(self):  # type: ignore[no-untyped-def]
        for i, text in enumerate(self.texts):
            yield f"f{i}", io.StringIO(text) if isinstance(text, str) else io.BytesIO(text)

    def __len__(self) -> int:
        return len(self.texts)


def pairs(x: int) -> list[int]:
    return [x, -x]


def plus(x: int) -> int:
    return x + 1


async def async_plus(x: int) -> int:
    return x + 1


def as_lists(batch: list[int]) -> list[int]:
    return [10 * x for x in batch]


def tar_bytes() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("a/1.txt", "a/1.cls"):
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"x"))
    return buffer.getvalue()


def zip_bytes() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("d/one", "1")
    return buffer.getvalue()


def first(x: tuple[Any, Any]) -> Any:
    return x[0]


def path_only(x: tuple[str, Any]) -> str:
    return x[0]


def five() -> Any:
    return Wrap(range(5))


MP = SHARDING_PRIORITIES.MULTIPROCESSING
CASES = {
    # rows
    "csv": Case(
        lambda: Texts("a,b\n1,2\n").parse_csv(), [["a", "b"], ["1", "2"]], None, ("parse_csv",)
    ),
    "csv dict": Case(
        lambda: Texts("a,b\n1,2\n").parse_csv_as_dict(),
        [{"a": "1", "b": "2"}],
        None,
        ("parse_csv_as_dict",),
    ),
    "lines": Case(
        lambda: Texts("x\r\ny\n").readlines(), [("f0", "x"), ("f0", "y")], None, ("readlines",)
    ),
    "json": Case(
        lambda: Texts("[1]", "2").parse_json_files(),
        [("f0", [1]), ("f1", 2)],
        2,
        ("parse_json_files",),
    ),
    "json too": Case(
        lambda: Texts("[1]").parse_json_data(), [("f0", [1])], 1, ("parse_json_data",)
    ),
    "paragraphs": Case(
        lambda: Wrap([("a", "1"), ("a", "2"), ("b", "3")]).lines_to_paragraphs(),
        [("a", "1\n2"), ("b", "3")],
        None,
        ("lines_to_paragraphs",),
    ),
    "columns": Case(
        lambda: Wrap([[{"a": 1}, {"a": 2, "b": 3}]]).rows2columnar(),
        [{"a": [1, 2], "b": [3]}],
        1,
        ("rows2columnar",),
    ),
    # flow
    "cycle": Case(lambda: Wrap([1, 2]).cycle(2), [1, 2, 1, 2], 4, ("cycle",)),
    "repeat": Case(lambda: Wrap([1, 2]).repeat(2), [1, 1, 2, 2], 4, ("repeat",)),
    "header": Case(lambda: five().header(3), [0, 1, 2], 3, ("header",)),
    "set_length": Case(lambda: five().filter(bool).set_length(4), [1, 2, 3, 4], 4, ("set_length",)),
    "enumerate": Case(lambda: Wrap("ab").enumerate(3), [(3, "a"), (4, "b")], 2, ("enumerate",)),
    "add_index": Case(
        lambda: Wrap([{}, {}]).add_index("i"), [{"i": 0}, {"i": 1}], 2, ("add_index",)
    ),
    "in_memory_cache": Case(
        lambda: five().in_memory_cache(), [0, 1, 2, 3, 4], 5, ("in_memory_cache",)
    ),
    "to_iter": Case(
        lambda: SequenceWrapper([5, 6]).to_iter_datapipe(), [5, 6], 2, ("to_iter_datapipe",)
    ),
    # items
    "flatmap": Case(lambda: Wrap([1, 2]).flatmap(pairs), [1, -1, 2, -2], None, ("flatmap",)),
    "map_batches": Case(
        lambda: five().map_batches(as_lists, 2), [0, 10, 20, 30, 40], None, ("map_batches",)
    ),
    "slice": Case(lambda: Wrap([(0, 1, 2)]).slice(1), [(1, 2)], 1, ("slice",)),
    "drop": Case(lambda: Wrap([(0, 1, 2)]).drop([0, 2]), [(1,)], 1, ("drop",)),
    "flatten": Case(lambda: Wrap([(0, (1, 2))]).flatten(), [(0, 1, 2)], 1, ("flatten",)),
    "threadpool_map": Case(
        lambda: five().threadpool_map(plus), [1, 2, 3, 4, 5], 5, ("threadpool_map",)
    ),
    "async_map": Case(
        lambda: five().async_map_batches(async_plus, 2), [1, 2, 3, 4, 5], 5, ("async_map_batches",)
    ),
    # order and buckets
    "in_batch_shuffle": Case(
        lambda: Wrap([list(range(9))]).in_batch_shuffle(), None, 1, ("in_batch_shuffle",)
    ),
    "shuffled_flatmap": Case(
        lambda: Wrap([range(9), range(9, 20)]).shuffled_flatmap(), None, 20, ("shuffled_flatmap",)
    ),
    "random_split": Case(
        lambda: Wrap(range(20)).random_split({"a": 5, "b": 15}, seed=0, target="a"),
        None,
        5,
        ("random_split",),
    ),
    "bucketbatch": Case(
        lambda: Wrap(range(20)).bucketbatch(5, batch_num=2), None, None, ("bucketbatch",)
    ),
    "max_token": Case(
        lambda: Wrap(["1", "22", "1"]).max_token_bucketize(3),
        [["1", "1"], ["22"]],
        None,
        ("max_token_bucketize",),
    ),
    # mixing and splitting
    "sample_mux": Case(lambda: five().sample_mux(Wrap(range(5, 30))), None, 30, ("sample_mux",)),
    "SampleMultiplexer": Case(
        lambda: SampleMultiplexer({five(): 1, Wrap(range(5, 30)): 1}), None, 30, ()
    ),
    "mux_longest": Case(
        lambda: Wrap([1]).mux_longest(Wrap([2, 3])), [1, 2, 3], 3, ("mux_longest",)
    ),
    "zip_longest": Case(
        lambda: Wrap([1]).zip_longest(Wrap([2, 3]), fill_value=0),
        [(1, 2), (0, 3)],
        2,
        ("zip_longest",),
    ),
    "zip_with_iter": Case(
        lambda: Wrap([1, 2]).zip_with_iter(Wrap([2, 1]), key_fn=abs),
        [(1, 1), (2, 2)],
        2,
        ("zip_with_iter",),
    ),
    "zip_with_map": Case(
        lambda: Wrap([1, 0]).zip_with_map(SequenceWrapper("ab"), key_fn=abs),
        [(1, "b"), (0, "a")],
        2,
        ("zip_with_map",),
    ),
    "round_robin_demux": Case(
        lambda: five().round_robin_demux(2)[1], [1, 3], 2, ("round_robin_demux",)
    ),
    "unzip": Case(lambda: Wrap([(1, 2), (3, 4)]).unzip(2)[1], [2, 4], 2, ("unzip",)),
    # files and archives
    "tar": Case(
        lambda: Texts(tar_bytes()).load_from_tar(length=2).map(path_only),
        ["f0/a/1.txt", "f0/a/1.cls"],
        2,
        ("load_from_tar",),
    ),
    "zip": Case(
        lambda: Texts(zip_bytes()).load_from_zip(length=1).map(path_only),
        ["f0/d/one"],
        1,
        ("load_from_zip",),
    ),
    "webdataset": Case(
        lambda: Wrap([("a/1.x", 1), ("a/1.y", 2), ("no", 3)]).webdataset(),
        [{"__key__": "a/1", ".x": 1, ".y": 2}],
        None,
        ("webdataset",),
    ),
    "shard_expand": Case(
        lambda: Wrap(["s-{09..10}"]).shard_expand(), ["s-09", "s-10"], None, ("shard_expand",)
    ),
    "check_hash": Case(
        lambda: Wrap([("f", b"x")]).check_hash({"f": "9dd4e461268c8034f5c8564e155c67a6"}, "md5"),
        [("f", b"x")],
        1,
        ("check_hash",),
    ),
    # threads and sharding
    "prefetch": Case(lambda: five().prefetch(2), [0, 1, 2, 3, 4], 5, ("prefetch",)),
    "dispatch": Case(
        lambda: five().sharding_round_robin_dispatch(MP),
        [0, 1, 2, 3, 4],
        5,
        ("sharding_round_robin_dispatch",),
    ),
    "shard_by_batch": Case(
        lambda: five().shard_by_batch(2), [0, 1, 2, 3, 4], None, ("shard_by_batch",)
    ),
}
# Tested where they have what they need: files, a CUDA device, other ranks.
ELSEWHERE = {
    "list_files_by_fsspec",
    "open_files_by_fsspec",
    "save_by_fsspec",
    "save_to_disk",
    "load_from_bz2",
    "load_from_xz",
    "decompress",
    "extract",
    "pin_memory",
    "fullsync",
    "to_map_datapipe",
}


def test_every_functional_name_is_in_the_table() -> None:
    ours = {
        name
        for base in (IterDataPipe, MapDataPipe)
        for name in base.functions
        if registered_by_us(base, name)
    }
    assert ours == ELSEWHERE.union(*(case.names for case in CASES.values()))


def by_case(test: Any) -> Any:
    return pytest.mark.parametrize("case", CASES.values(), ids=CASES)(test)


def flat(items: list[Any]) -> list[Any]:
    return sorted(itertools.chain.from_iterable(i if isinstance(i, list) else [i] for i in items))


@by_case
def test_content(case: Case) -> None:
    items = list(case.make())
    if case.expected is not None:
        assert items == case.expected
    else:
        assert len(set(flat(items))) == len(flat(items)) > 0


@by_case
def test_length(case: Case) -> None:
    pipe = case.make()
    if case.length is None:
        with pytest.raises((TypeError, NotImplementedError)):
            len(pipe)
    else:
        assert len(pipe) == case.length == len(list(pipe))


@by_case
def test_a_given_up_iteration_leaves_the_next_one_whole(case: Case) -> None:
    pipe = case.make()
    whole = list(pipe)
    next(iter(pipe))
    again = list(pipe)
    if case.expected is not None:
        assert again == whole
    else:
        assert flat(again) == flat(whole)


@by_case
@pytest.mark.parametrize("module", [pickle, dill], ids=["pickle", "dill"])
def test_a_copy_yields_the_same_from_the_start(case: Case, module: Any) -> None:
    pipe = case.make()
    iterator = iter(pipe)
    next(iterator)
    copy = module.loads(module.dumps(pipe))
    whole = list(copy)
    if case.expected is not None:
        assert whole == case.expected
    else:
        assert flat(whole) == flat(list(pipe))


def random_cases() -> dict[str, Case]:
    return {
        name: case
        for name, case in CASES.items()
        if case.expected is None and name not in ("random_split", "bucketbatch")
    }


@pytest.mark.parametrize("case", random_cases().values(), ids=random_cases())
class TestRandom:
    def test_seed_decides_the_order(self, case: Case) -> None:
        pipe = case.make()
        orders = []
        for seed in (1, 2, 1):
            assert inspect.ismethod(pipe.set_seed)
            pipe.set_seed(seed)
            orders.append(list(pipe))
        assert orders[0] == orders[2] != orders[1]
        assert flat(orders[0]) == flat(orders[1])

    def test_a_seed_holds_for_one_iteration(self, case: Case) -> None:
        pipe = case.make().set_seed(1)
        assert list(pipe) != list(pipe)

    def test_unseeded_it_follows_torchs_generator(self, case: Case) -> None:
        pipe = case.make()
        orders = []
        for _ in range(2):
            torch.manual_seed(5)
            orders.append(list(pipe))
        assert orders[0] == orders[1]

    def test_a_copy_keeps_the_seed_that_is_set(self, case: Case) -> None:
        pipe = case.make().set_seed(3)
        copy = clone(pipe)
        assert list(copy) == list(pipe)
