"""Workers that die: nothing is lost, and what can't go on says why."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.utils.data import IterableDataset

from swift_loader import SwiftLoader, WorkerDiedError
from tests import datasets
from tests.conformance import indices_of, plan_of
from tests.process.scripts import living

pytestmark = pytest.mark.usefixtures("nothing_left")


def workers_of(loader: SwiftLoader) -> list[psutil.Process]:
    return living(worker.pid for worker in loader.stats().workers)


def all_workers_of(loader: SwiftLoader, count: int) -> list[psutil.Process]:
    """The same when all are there, which is after the first has made batches."""
    deadline_s = time.monotonic() + 30
    while len(found := workers_of(loader)) < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return found


def remaining(iterator: Iterator[Any]) -> list[int]:
    return [i for batch in iterator for i in indices_of(batch)]


@pytest.mark.parametrize("multithread", [True, False])
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV", "exit"])
def test_worker_that_dies_in_getitem_costs_no_sample(
    how: str, multithread: bool, tmp_path: Path
) -> None:
    with SwiftLoader(
        datasets.Dies,
        {"n": 60, "at": 23, "how": how, "folder": tmp_path},
        batch_size=4,
        worker_per_consumer=2,
        validate=False,
        multithread=multithread,
    ) as loader:
        loader.start(0, to_device=lambda batch, device: batch)
        assert remaining(iter(loader)) == list(range(60))
        assert remaining(iter(loader)) == list(range(60))
        assert loader.stats().restarts == 1


def test_idle_worker_that_is_killed_costs_no_sample() -> None:
    with SwiftLoader(
        datasets.Numbers, {"n": 100}, batch_size=5, worker_per_consumer=2, data_queue_size=4
    ) as loader:
        iterator = iter(loader)
        got = [i for _ in range(3) for i in indices_of(next(iterator))]
        for process in workers_of(loader):
            process.kill()
        assert got + remaining(iterator) == list(range(100))


def test_worker_killed_while_it_writes_a_batch_costs_no_sample() -> None:
    with SwiftLoader(
        datasets.Big, {"n": 24, "nbytes": 30 << 20}, worker_per_consumer=2, data_queue_size=4
    ) as loader:
        seen = []
        for rows, indices in loader:
            assert (rows == int(indices[0]) % 251).all()
            seen += indices.tolist()
            if len(seen) in (3, 9, 15):
                workers_of(loader)[0].kill()  # most of its time goes into writing
        assert seen == list(range(24))


def test_worker_is_replaced_whatever_the_others_did_to_their_stderr() -> None:
    with SwiftLoader(
        datasets.Mute, {"n": 2000}, batch_size=2, worker_per_consumer=2, validate=False
    ) as loader:
        seen = []
        for k, batch in enumerate(loader):
            seen += indices_of(batch)
            if k == 20:
                first, second = all_workers_of(loader, 2)
                first.kill()
            if k == 50:
                second.kill()
        assert seen == list(range(2000))
        assert loader.stats().restarts == 2


def test_every_worker_killed_at_once_is_replaced() -> None:
    with SwiftLoader(
        datasets.Numbers,
        {"n": 90},
        batch_size=2,
        worker_per_consumer=3,
        data_queue_size=10,
        shuffle=True,
    ) as loader:
        plan = plan_of(loader)
        seen = []
        for k, batch in enumerate(loader):
            seen.append(indices_of(batch))
            if k == 10:
                for process in workers_of(loader):
                    process.kill()
        assert seen == [plan.batch(0, 0, k).tolist() for k in range(45)]


def test_batch_that_kills_two_workers_is_an_error_that_names_it(tmp_path: Path) -> None:
    with SwiftLoader(
        datasets.Dies,
        {"n": 40, "at": 13, "how": "exit", "folder": tmp_path, "always": True},
        batch_size=4,
        worker_per_consumer=2,
        data_queue_size=4,  # so that only this epoch's batch of sample 13 is ever made
        validate=False,
    ) as loader:
        with pytest.raises(WorkerDiedError) as caught:
            list(loader)
        story = str(caught.value)
    assert "batch 3 of epoch 0" in story
    assert "[12, 13, 14, 15]" in story
    assert "13" in story
    assert "code 7" in story
    assert "the last words of this worker" in story


class DiesReading(IterableDataset[int]):
    """Ends its worker at an item: the first one at 20, the next three at 5."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[int]:
        lives = len([*self.folder.iterdir()])
        (self.folder / str(lives)).touch()
        for i in range(40):
            if lives < 4 and i == (5 if lives else 20):
                os.kill(os.getpid(), signal.SIGKILL)
            yield i


def test_ends_while_a_stream_is_read_again_are_not_the_batchs_fault(tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 5, "max_deaths_per_batch": 1, "validate": False}
    with SwiftLoader(DiesReading, {"folder": tmp_path}, **options) as loader:
        assert [i for batch in loader for i in batch.tolist()] == list(range(40))
        assert loader.stats().restarts == 4


def test_out_of_memory_kill_is_explained_with_figures(tmp_path: Path) -> None:
    with SwiftLoader(
        datasets.Dies,
        {"n": 8, "at": 2, "how": "SIGKILL", "folder": tmp_path, "always": True},
        batch_size=4,
        validate=False,
    ) as loader:
        with pytest.raises(WorkerDiedError, match="SIGKILL") as caught:
            list(loader)
    assert "out of memory" in str(caught.value)
    assert "GiB" in str(caught.value)


def test_restarts_are_bounded() -> None:
    with SwiftLoader(datasets.Numbers, {"n": 4000}, max_worker_restarts=2) as loader:
        iterator = iter(loader)
        with pytest.raises(WorkerDiedError, match="max_worker_restarts=2"):
            for _ in range(100):
                for process in workers_of(loader):
                    process.kill()
                for _ in range(20):
                    next(iterator)
