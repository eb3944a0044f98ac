"""The conformance suite over workers that are threads, and what is theirs alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from swift_loader import ConfigError, Shards, SwiftLoader, WorkerTimeoutError, random_generators
from tests import datasets
from tests.conformance import Conformance, indices_of

pytestmark = pytest.mark.usefixtures("nothing_left")


class TestThreadWorkers(Conformance):
    augmented = datasets.AugmentedByItsOwn

    def loader(self, dataset: Any, kwargs: dict[str, Any], **options: Any) -> SwiftLoader:
        return SwiftLoader(dataset, kwargs, start_method="thread", **options)

    def test_a_worker_is_born_as_torch_bears_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # What a process has of its own, a thread leaves alone.
        inits: list[int] = []
        monkeypatch.setattr(Told, "inits", inits)
        before = torch.get_num_threads(), os.sched_getaffinity(0), torch.initial_seed()
        with (
            np.errstate(divide="raise"),
            self.loader(
                Told, {"n": 12}, batch_size=2, worker_per_consumer=3, worker_init_fn=Told.init
            ) as loader,
        ):
            names = {name for batch in loader for name in batch["thread"]}
        assert names <= {f"swift_loader-worker-0-{i}" for i in range(3)}
        assert sorted(inits) == [0, 0, 1, 2]  # the first: of the trial
        assert (torch.get_num_threads(), os.sched_getaffinity(0), torch.initial_seed()) == before


class Told(datasets.Numbers):
    inits: list[int] = []  # noqa: RUF012 - a test puts its own in its place

    @classmethod
    def init(cls, worker: int) -> None:
        assert get_worker_info() is None
        cls.inits.append(worker)

    def __getitem__(self, i: int) -> Any:
        assert get_worker_info() is None
        assert np.geterr()["divide"] == "raise"
        return {"thread": threading.current_thread().name, "pid": os.getpid()}


def test_draws_of_a_batch_are_the_same_in_threads_in_processes_and_without_workers() -> None:
    seen = []
    for how in ({"start_method": "thread"}, {}, {"worker_per_consumer": 0}):
        with SwiftLoader(
            datasets.AugmentedByItsOwn, {"n": 20}, batch_size=3, shuffle=True, seed=4,
            **{"worker_per_consumer": 2, **how},
        ) as loader:  # fmt: skip
            seen.append([{k: v.tolist() for k, v in batch.items()} for batch in loader])
    assert seen[0] == seen[1] == seen[2]


def test_each_worker_has_a_data_set_of_its_own_over_the_same_numbers() -> None:
    rows = np.arange(40_000.0).reshape(400, 100)
    with SwiftLoader(
        list(rows), batch_size=10, worker_per_consumer=2, start_method="thread"
    ) as loader:
        got = torch.cat(list(loader))
    assert (got.numpy() == rows).all()
    got += 1
    assert rows[0, 0] == 0  # a batch is the loop's own


class Global(datasets.Numbers):
    def __getitem__(self, i: int) -> Any:
        return torch.rand(2), i


def test_global_draws_are_said_with_what_to_do() -> None:
    said = r"draws from torch, and start_method='thread'.*swift_loader.random_generators\(\)"
    with pytest.warns(RuntimeWarning, match=said) as warned:
        SwiftLoader(Global, {"n": 8}, batch_size=2, start_method="thread").close()
    assert warned[0].filename == __file__


def test_generators_of_a_batch_are_refused_where_no_batch_is_made() -> None:
    with pytest.raises(RuntimeError, match="for the thread that makes a batch"):
        random_generators()


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


@pytest.mark.parametrize(
    ("dataset", "options", "text"),
    [
        (Endless, {}, "Shards, or another start_method"),
        (datasets.Numbers, {"cache": "1MB"}, "keep them itself"),
        (datasets.Numbers, {"threads_per_worker": 4}, "larger worker_per_consumer"),
        (datasets.Numbers, {"worker_affinity": [0]}, "CPUs of this process"),
    ],
)
def test_what_a_thread_can_not_do_is_refused(
    dataset: Any, options: dict[str, Any], text: str
) -> None:
    kwargs = {"n": 4} if dataset is datasets.Numbers else {}
    with pytest.raises(ConfigError, match=text):
        SwiftLoader(dataset, kwargs, batch_size=2, start_method="thread", **options)


def lines_of(shard: str) -> Any:
    return (f"{shard}{i}" for i in range(5))


def test_shards_are_dealt_to_threads() -> None:
    with SwiftLoader(
        Shards(["a", "b", "c", "d"], lines_of), batch_size=2, worker_per_consumer=2,
        start_method="thread",
    ) as loader:  # fmt: skip
        items = [item for batch in loader for item in batch]
    assert sorted(items) == [f"{shard}{i}" for shard in "abcd" for i in range(5)]


class Stuck(datasets.Numbers):
    """Sample 5 waits until it is let go, the first so many times that it is asked for."""

    let_go = threading.Event()
    times = 0

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if i == 5 and Stuck.times:
            Stuck.times -= 1
            self.wait_for_it()
        return super().__getitem__(i)

    def wait_for_it(self) -> None:
        self.let_go.wait()


@pytest.fixture
def stuck(nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Stuck, "let_go", threading.Event())
    monkeypatch.setattr(Stuck, "times", 1)
    yield
    Stuck.let_go.set()


@pytest.mark.usefixtures("stuck")
def test_a_thread_that_hangs_is_shown_and_ends_when_it_can() -> None:
    Stuck.times = 100
    with (
        pytest.warns(RuntimeWarning, match="(?s)left to itself.*in wait_for_it"),
        pytest.raises(WorkerTimeoutError, match="in wait_for_it"),
        SwiftLoader(
            Stuck, {"n": 8}, batch_size=2, worker_per_consumer=2, start_method="thread",
            validate=False, timeout=2.0,
        ) as loader,
    ):  # fmt: skip
        list(loader)


@pytest.mark.usefixtures("stuck")
def test_a_thread_that_hangs_is_replaced_where_that_is_wanted() -> None:
    with SwiftLoader(
        Stuck, {"n": 8}, batch_size=2, worker_per_consumer=2, start_method="thread",
        validate=False, timeout=0.5, on_timeout="restart",
    ) as loader:  # fmt: skip
        for _ in range(3):  # the first to come to sample 5 may make it for the epoch after
            assert [i for batch in loader for i in indices_of(batch)] == list(range(8))
        assert loader.stats().restarts >= 1


def test_a_loader_that_is_forgotten_ends_its_threads() -> None:
    loader = SwiftLoader(datasets.Numbers, {"n": 40}, batch_size=2, start_method="thread")
    assert indices_of(next(iter(loader))) == [0, 1]
    del loader


class Exits(datasets.Numbers):
    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if i == 5:
            raise SystemExit(3)
        return super().__getitem__(i)


def test_an_exit_in_a_data_set_is_an_error_of_its_batch() -> None:
    with SwiftLoader(
        Exits, {"n": 8}, batch_size=2, start_method="thread", validate=False
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        with pytest.raises((SystemExit, Exception), match="3"):
            next(iterator)
