"""What a loop and its workers may meet, and go on after; or learn of at once."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from swift_loader import ClosedError, SwiftLoader, WorkerDiedError
from tests import datasets
from tests.conftest import Inventory
from tests.process.test_crashes import workers_of

pytestmark = pytest.mark.usefixtures("nothing_left")


def nothing_moves(batch: Any, device: torch.device) -> Any:
    return batch


def in_three_threads(act: Callable[[], None]) -> None:
    threads = [threading.Thread(target=act) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("staged", [False, True])
def test_two_threads_that_share_an_iterator_get_each_batch_once(staged: bool) -> None:
    with SwiftLoader(datasets.Numbers, {"n": 3000}, batch_size=2, worker_per_consumer=2) as loader:
        loader.start(0, to_device=nothing_moves if staged else None)
        iterator = iter(loader)
        got: list[int] = []
        errors: list[BaseException] = []

        def take() -> None:
            try:
                for batch in iterator:
                    got.extend(batch[1].tolist())
            except BaseException as error:  # noqa: BLE001 - the test shows it
                errors.append(error)

        in_three_threads(take)
    assert not errors
    assert sorted(got) == list(range(3000))


def test_threads_that_begin_to_iterate_at_once_start_the_workers_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[SwiftLoader[Any]] = []
    start = SwiftLoader.start

    def counted(loader: SwiftLoader[Any]) -> None:
        started.append(loader)
        start(loader)

    monkeypatch.setattr(SwiftLoader, "start", counted)
    with SwiftLoader(datasets.Numbers, {"n": 8}, batch_size=2, validate=False) as loader:
        together = threading.Barrier(3)
        sizes: list[int] = []
        errors: list[BaseException] = []

        def take() -> None:
            together.wait()
            try:
                sizes.append(sum(1 for _ in loader))
            except ClosedError as error:  # a later one has begun
                errors.append(error)

        in_three_threads(take)
    assert len(started) == 1
    assert len(sizes) + len(errors) == 3
    assert 4 in sizes
    assert all("another iteration" in str(error) for error in errors)


def test_a_thread_in_an_iterator_that_is_left_does_not_keep_the_next_one_from_reading() -> None:
    with SwiftLoader(datasets.Slow, {"n": 8, "delay_s": 0.05}, batch_size=1) as loader:
        left = iter(loader)
        ended = threading.Event()

        def take() -> None:
            try:
                for _ in left:
                    pass
            except ClosedError:
                ended.set()

        thread = threading.Thread(target=take)
        thread.start()
        time.sleep(0.1)
        assert len(list(loader)) == 8
        thread.join(20)
        assert ended.is_set()


class WaitsInOneShard(IterableDataset[int]):
    """Worker 0 gives its items when `go` is there."""

    def __init__(self, go: Path) -> None:
        self.go = go

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        while info.id == 0 and not self.go.exists():
            time.sleep(0.01)
        return iter(range(info.id, 200, info.num_workers))


def test_out_of_order_a_slow_shard_does_not_stop_the_others(tmp_path: Path) -> None:
    with SwiftLoader(
        WaitsInOneShard,
        {"go": tmp_path / "go"},
        batch_size=2,
        worker_per_consumer=2,
        data_queue_size=4,
        in_order=False,
        validate=False,
    ) as loader:
        for _ in range(2):
            got: list[int] = []
            for batch in loader:
                got += batch.tolist()
                if len(got) == 100:
                    assert set(got) == set(range(1, 200, 2)), "all of the other shard"
                    (tmp_path / "go").touch()
            assert sorted(got) == list(range(200))
            (tmp_path / "go").unlink()
            got.clear()
            break


class Odd(BaseException):
    """No `Exception`."""


def encode(batch: Any) -> bytes:
    return bytes(batch[1].tolist())


def decode_never(data: bytes) -> Any:
    raise Odd("the decoder")


def test_whatever_a_decoder_raises_reaches_the_loop_at_once() -> None:
    with (
        SwiftLoader(
            datasets.Numbers,
            {"n": 8},
            batch_size=2,
            batch_encoder=encode,
            batch_decoder=decode_never,
            validate=False,
        ) as loader,
        pytest.raises(Odd, match="the decoder"),
    ):
        list(loader)


@pytest.mark.parametrize("staged", [False, True])
def test_no_descriptors_for_the_worker_in_place_of_a_dead_one_is_an_error_at_once(
    staged: bool,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with SwiftLoader(datasets.Slow, {"n": 400, "delay_s": 0.01}, batch_size=2) as loader:
        loader.start(0, to_device=nothing_moves if staged else None)
        iterator = iter(loader)
        next(iterator)
        worker = workers_of(loader)[0]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_descriptors()) + 1, hard))
        try:
            fill = fill_descriptors()
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(OSError, match="Too many open files"):
                for _ in iterator:
                    pass
        finally:
            for fd in fill:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def fill_descriptors() -> list[int]:
    """Open all that are left."""
    got: list[int] = []
    while True:
        try:
            got.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return got


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("timeout", [1e6, inf])
def test_a_timeout_may_be_as_long_as_one_likes(timeout: float, staged: bool) -> None:
    with SwiftLoader(datasets.Numbers, {"n": 8}, batch_size=2, timeout=timeout) as loader:
        loader.start(0, to_device=nothing_moves if staged else None)
        assert len(list(loader)) == 4


class ClosesAll(datasets.Numbers):
    """Closes descriptors that it did not open, and goes on."""

    def __getitem__(self, i: int) -> Any:
        if i == 7:
            os.closerange(3, 256)
            time.sleep(60)
        return super().__getitem__(i)


class EmptiesModules(datasets.Numbers):
    def __getitem__(self, i: int) -> Any:
        if i == 7:
            sys.modules.clear()
            raise ValueError("an error that can't be told, as that takes an import")
        return super().__getitem__(i)


@pytest.mark.parametrize(
    ("dataset", "how"), [(ClosesAll, "closed its connection"), (EmptiesModules, "exited by itself")]
)
def test_a_worker_that_can_answer_no_more_is_replaced_and_its_batch_named(
    dataset: type[datasets.Numbers], how: str
) -> None:
    with SwiftLoader(dataset, {"n": 40}, batch_size=2, validate=False) as loader:
        with pytest.raises(WorkerDiedError, match=how) as caught:
            list(loader)
        assert loader.stats().restarts == 1
    assert "making batch 3 of epoch 0 of samples [6, 7]" in str(caught.value)
    assert "The same batch has ended 2 workers" in str(caught.value)


class DiesInShard(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        for i in range(100):
            if info.id == 1 and i == 7:
                os._exit(3)
            yield i


def test_the_death_of_a_streams_worker_names_the_shard_and_how_far_it_was() -> None:
    with (
        SwiftLoader(DiesInShard, batch_size=2, worker_per_consumer=2, validate=False) as loader,
        pytest.raises(WorkerDiedError) as caught,
    ):
        list(loader)
    assert "from the shard of worker 1, after 3 batches of that" in str(caught.value)
    assert "samples" not in str(caught.value).partition("The same batch")[0]


def test_a_closed_loader_gives_memory_and_descriptors_back_while_it_is_held() -> None:
    gc.collect()
    gc.disable()
    try:
        before = Inventory()
        loader = SwiftLoader(datasets.Numbers, {"n": 400}, batch_size=8, worker_per_consumer=2)
        loader.start(0, to_device=nothing_moves)
        iterator = iter(loader)
        kept = next(iterator)
        loader.close()
        left = Inventory().more_than(before)
        assert left.pop("regions", 0) <= 1, "that of the batch which is kept"
        assert not left
        assert kept[1].tolist() == list(range(8))
        del kept
        assert not Inventory().more_than(before)
    finally:
        gc.enable()


def test_no_process_of_a_loader_leaves_a_socket_unclosed() -> None:
    script = (
        "from swift_loader import SwiftLoader; from tests import datasets\n"
        "with SwiftLoader(datasets.Numbers, {'n': 8}) as loader: assert len(list(loader)) == 8"
    )
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", script]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "unclosed" not in ran.stderr


def test_slots_take_no_descriptors() -> None:
    with SwiftLoader(
        datasets.Numbers, {"n": 400}, batch_size=2, worker_per_consumer=2, data_queue_size=20
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        before = Counter(open_descriptors()).total()
        kept = [next(iterator) for _ in range(40)]
        assert len(kept) == 40
        assert Counter(open_descriptors()).total() <= before
