"""The interface of torch's `DataLoader`: its names, its meaning, its attributes."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    get_worker_info,
)

from swift_loader import ClosedError, ConfigError, SwiftLoader
from tests import datasets

pytestmark = pytest.mark.usefixtures("nothing_left")
ROWS = TensorDataset(torch.arange(20))


class CallableRows:
    """A data set that can be called as well."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return index

    def __call__(self) -> list[int]:
        raise AssertionError("it is no factory")


class Lazy(CallableRows):
    """Loads whatever it is asked for, but what Python itself asks for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments: []


class Sized(IterableDataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        return iter(range(self.length))


def batches(loader: Any) -> list[list[int]]:
    return [(batch[0] if isinstance(batch, (list, tuple)) else batch).tolist() for batch in loader]


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 8},
        {"batch_size": 8, "drop_last": True},
        {"batch_size": 8, "drop_last": False, "shuffle": None},
        {"batch_size": 3, "timeout": 0, "pin_memory": False, "persistent_workers": True},
        {"batch_size": 4, "prefetch_factor": 3, "sampler": range(5, 15)},
        {"batch_sampler": [[1, 2], [3], [4, 5, 6]]},
    ],
    ids=str,
)
def test_torchs_arguments_give_torchs_batches(arguments: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        # A fork leaves `ROWS` as they are; torch's default since Python 3.14 shares their memory.
        theirs = DataLoader(ROWS, num_workers=1, multiprocessing_context="fork", **arguments)
    with SwiftLoader(ROWS, num_workers=2, validate=False, **arguments) as ours:
        assert len(ours) == len(theirs)
        assert batches(ours) == batches(theirs)
        for name in ("batch_size", "drop_last", "pin_memory", "worker_init_fn", "in_order"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert ours.num_workers == 2
        assert ours.dataset is ROWS
        assert ours.timeout == (0 if "timeout" in arguments else 600)
        assert ours.generator is None
        assert ours.multiprocessing_context is None
        assert ours.prefetch_factor == arguments.get("prefetch_factor", 5)
        assert [*ours.batch_sampler] == [*theirs.batch_sampler]  # type: ignore[misc]
        if "batch_sampler" not in arguments:
            assert ours.drop_last or list(ours.sampler) == list(theirs.sampler)
            assert len(ours.sampler) == len(list(ours.sampler))


class Makers(Dataset[int]):
    """Which worker makes a sample."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> int:
        info = get_worker_info()
        assert info is not None
        return info.id


def late_first_worker(worker: int) -> None:
    time.sleep(1.5 * (worker == 0))


def test_batches_are_made_by_workers_that_are_free() -> None:
    options: dict[str, Any] = {"num_workers": 2, "worker_init_fn": late_first_worker}
    torchs = DataLoader(Makers(), multiprocessing_context="fork", **options)
    assert [int(i) for i in torchs] == [0, 1] * 4
    with SwiftLoader(Makers(), validate=False, **options) as ours:
        assert [int(i) for i in ours] != [0, 1] * 4


@pytest.mark.parametrize("name", ["batch_size", "sampler", "batch_sampler", "drop_last", "dataset"])
def test_attributes_can_not_be_set_as_with_torch(name: str) -> None:
    for loader in (DataLoader(ROWS), SwiftLoader(ROWS, validate=False)):
        with pytest.raises(ValueError, match=name):
            setattr(loader, name, None)


def test_a_data_set_a_class_or_a_keyword() -> None:
    for loader in (
        SwiftLoader(ROWS, batch_size=10),
        SwiftLoader(dataset=ROWS, batch_size=10),
        SwiftLoader(dataset_class=datasets.Numbers, dataset_kwargs={"n": 20}, batch_size=10),
        SwiftLoader([torch.tensor([i]) for i in range(20)], batch_size=10),
        SwiftLoader(Sized(20), batch_size=10),
        SwiftLoader(CallableRows(), batch_size=3),
    ):
        with loader:
            assert len(loader) == 2
            assert len(list(loader)) == 2
            assert len(loader.dataset) in (20, 6)


class Seeds(datasets.Numbers):
    """Samples: what worker info says."""

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        return info.id, info.seed - info.id


@pytest.mark.parametrize("sampler", [None, range(40)])
def test_the_seed_of_worker_info_is_another_one_in_each_epoch(sampler: Any) -> None:
    options: Any = {"batch_size": 1, "num_workers": 2, "sampler": sampler}
    runs = []
    with SwiftLoader(Seeds(40), seed=3, **options) as loader:
        for each in (DataLoader(Seeds(40), multiprocessing_context="fork", **options), loader):
            seeds = [{int(seed) for _, seed in each} for _ in range(3)]
            assert [len(of_epoch) for of_epoch in seeds] == [1, 1, 1]  # of both workers
            assert len(set.union(*seeds)) == 3
            runs.append(seeds)
    with SwiftLoader(Seeds(40), seed=3, **options) as loader:
        assert [{int(seed) for _, seed in loader} for _ in range(3)] == runs[-1]


def test_a_data_set_with_an_attribute_of_any_name_gives_its_samples() -> None:
    want = [batch.tolist() for batch in DataLoader(Lazy(), batch_size=4)]
    for options in ({"num_workers": 0}, {"num_workers": 1, "on_error": "replace"}):
        with SwiftLoader(Lazy(), batch_size=4, **options) as loader:
            assert [batch.tolist() for batch in loader] == want


def test_the_data_set_is_not_kept_by_the_loader() -> None:
    rows = TensorDataset(torch.arange(4))
    with SwiftLoader(rows, validate=False) as loader:
        assert loader.dataset is rows
        del rows
        gc.collect()
        assert loader.dataset[3][0] == 3  # a view over what the workers have
        assert loader.dataset is loader.dataset


def test_an_epoch_that_is_no_number_is_refused() -> None:
    with SwiftLoader(ROWS, batch_size=10) as loader:
        for epoch in (2**70, -1, 1.5, True):
            with pytest.raises(ConfigError, match="epoch"):
                loader.set_epoch(epoch)  # type: ignore[arg-type]
        loader.set_epoch(2**62 - 1)
        assert len(list(loader)) == 2


def test_from_dataloader_takes_options_by_any_of_their_names() -> None:
    theirs = DataLoader(ROWS, batch_size=8, num_workers=1, sampler=RandomSampler(ROWS))
    with SwiftLoader.from_dataloader(theirs, num_workers=2, drop_last=True) as ours:
        assert ours.num_workers == 2
        assert ours.drop_last
        assert len(ours) == 2


def test_fewer_samples_than_a_batch_with_drop_last_is_said() -> None:
    with (
        pytest.warns(UserWarning, match="epochs are empty"),
        SwiftLoader(ROWS, batch_size=64, drop_last=True) as loader,
    ):
        assert list(loader) == []


def test_a_loader_is_copied_and_pickled_as_its_arguments() -> None:
    with SwiftLoader(ROWS, batch_size=4, num_workers=1, shuffle=True, seed=3) as loader:
        expected = batches(loader)
        for again in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
            with again:
                assert "not started" in repr(again)
                assert batches(again) == expected
        assert repr(loader) == (
            "<SwiftLoader(TensorDataset, batch_size=4, shuffle=True, seed=3, num_workers=1), "
            "started>"
        )
    assert "closed" in repr(loader)


@pytest.mark.parametrize("taken", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_iterator_is_neither_copied_nor_pickled(taken: Callable[[Any], Any]) -> None:
    with SwiftLoader(ROWS, batch_size=4, num_workers=1) as loader:
        for one in (loader, DataLoader(ROWS, batch_size=4)):
            iterator = iter(one)
            with pytest.raises(NotImplementedError, match="pickle"):
                taken(iterator)
            assert len(list(iterator)) == 5


@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize("dataset", [ROWS, Sized(20)])
def test_the_attributes_of_a_loader_make_the_same_batches(
    dataset: Any, batch_size: int | None
) -> None:
    """A library builds a loader of them."""
    theirs = DataLoader(dataset, batch_size=batch_size)
    with SwiftLoader(dataset, batch_size=batch_size, num_workers=0) as ours:
        assert ours.collate_fn is theirs.collate_fn
        assert (ours.batch_sampler is None) == (theirs.batch_sampler is None)


def test_start_without_an_index() -> None:
    with SwiftLoader(ROWS, batch_size=10) as loader:
        loader.start(device="cpu")
        assert len(list(loader)) == 2
    with SwiftLoader(ROWS, nb_consumer=2) as loader:
        with pytest.raises(ConfigError, match="nb_consumer=2"):
            loader.start(2)
        with pytest.raises(ClosedError, match="nb_consumer"):
            loader.start()


def test_ranks_without_nb_consumer_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for loader in (SwiftLoader(ROWS), SwiftLoader.from_dataloader(DataLoader(ROWS))):
        with loader, pytest.raises(ConfigError, match="Give nb_consumer=2"):
            iter(loader)  # before the first batch
        with pytest.raises(ClosedError):
            iter(loader)
    with SwiftLoader(ROWS, nb_consumer=1, batch_size=20) as loader:  # taken at its word
        assert batches(loader) == [list(range(20))]
    with SwiftLoader(ROWS, nb_consumer=2, batch_size=20) as loader:  # torchrun's rank
        assert batches(loader) == [list(range(10, 20))]


def test_a_loader_is_an_argument_of_a_spawned_process(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import torch, torch.multiprocessing as mp\n"
        "from swift_loader import SwiftLoader\n"
        "from torch.utils.data import TensorDataset\n"
        "def work(rank, loader):\n"
        "    loader.start(rank)\n"
        "    assert len(loader) == 1, len(loader)\n"
        "    (batch,), = loader\n"
        "    assert batch.tolist() == [2 * rank, 2 * rank + 1]\n"
        "    loader.close()\n"
        "if __name__ == '__main__':\n"
        "    with SwiftLoader(TensorDataset(torch.arange(4)), batch_size=2, nb_consumer=2) as it:\n"
        "        mp.spawn(work, (it,), 2)\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_shuffle_follows_the_seed_that_the_script_gave_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def order(kind: Any, seed: int, **options: Any) -> list[int]:
        torch.manual_seed(seed)
        loader = kind(ROWS, shuffle=True, **options)
        getattr(loader, "start", lambda consumer: None)(0)
        found = [int(batch[0]) for batch in loader]
        getattr(loader, "close", lambda: None)()
        return found

    with torch.random.fork_rng():
        for kind in (DataLoader, SwiftLoader):
            assert order(kind, 1) == order(kind, 1) != order(kind, 2)
        # Of several consumers, each may be a process of its own, with a seed of its own.
        assert order(SwiftLoader, 1, nb_consumer=2) == order(SwiftLoader, 2, nb_consumer=2)
        # So may ranks that are one consumer, and need the same batches.
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert order(SwiftLoader, 1, nb_consumer=1) == order(SwiftLoader, 2, nb_consumer=1)


def test_spawn_is_taken_where_the_script_has_no_file() -> None:
    code = (
        "from swift_loader import SwiftLoader\n"
        "with SwiftLoader(list(range(6)), batch_size=3, multiprocessing_context='spawn') as loader:"
        "\n    print([batch.tolist() for batch in loader])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.stderr) == ("[[0, 1, 2], [3, 4, 5]]\n", "")


def test_more_workers_than_cpus_get_no_warning_here() -> None:
    many = (os.cpu_count() or 1) + 1
    with pytest.warns(UserWarning, match="suggested max"):
        DataLoader(ROWS, num_workers=many)
    with warnings.catch_warnings():  # a difference that docs/moving.md names
        warnings.simplefilter("error")
        SwiftLoader(ROWS, num_workers=many, validate=False).close()


@pytest.mark.filterwarnings("ignore:23 samples can't be dealt")
@pytest.mark.parametrize("tail", ["balanced", "pad", "drop"])
@pytest.mark.parametrize("rank", [0, 1])
def test_indices_asked_before_the_start_are_those_of_this_rank(
    monkeypatch: pytest.MonkeyPatch, rank: int, tail: str
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    rows = torch.arange(23)
    for size in (1, 4):  # with 1, the ranks make different numbers of steps
        options: dict[str, Any] = {"num_workers": 0, "shuffle": True, "tail": tail, "seed": 3}
        with SwiftLoader(rows, batch_size=size, nb_consumer=2, **options) as loader:
            lengths = len(loader), len(loader.sampler), len(loader.batch_sampler)
            batches, indices = list(loader.batch_sampler), list(loader.sampler)
            came = [batch.tolist() for batch in loader]
        assert batches == came
        assert indices == [index for batch in came for index in batch]
        assert lengths == (len(came), len(indices), len(came))


def test_indices_of_a_rank_that_nobody_has_told_are_an_error() -> None:
    with SwiftLoader(torch.arange(23), batch_size=4, num_workers=0, nb_consumer=2) as loader:
        for ask in (lambda: list(loader.sampler), lambda: list(loader.batch_sampler)):
            with pytest.raises(
                ClosedError, match=r"start\(consumer_index, device\) before you ask"
            ):
                ask()
        loader.start(1)
        assert list(loader.batch_sampler) == [batch.tolist() for batch in loader]
