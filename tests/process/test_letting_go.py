"""Loaders that nobody holds any more, that somebody else closes, that have neighbours."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest

from swift_loader import ClosedError, SwiftLoader
from tests import datasets
from tests.conformance import indices_of, plan_of
from tests.process.scripts import assert_gone, family, living, running, wait_for
from tests.process.test_crashes import workers_of

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def begun(staged: bool) -> tuple[SwiftLoader, Iterator[Any], list[psutil.Process]]:
    loader = SwiftLoader(datasets.Numbers, {"n": 400}, batch_size=2, worker_per_consumer=2)
    loader.start(0, to_device=(lambda batch, device: batch) if staged else None)
    iterator = iter(loader)
    next(iterator)
    return loader, iterator, workers_of(loader)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("staged", [False, True])
def test_loader_that_nobody_holds_ends_without_the_collector(staged: bool) -> None:
    loader, iterator, workers = begun(staged)
    threads = threading.active_count()
    del loader
    next(iterator)  # whoever iterates holds it
    assert all(worker.is_running() for worker in workers)
    del iterator
    assert_gone(workers)
    assert threading.active_count() == threads - (3 if staged else 0)


@pytest.mark.parametrize("staged", [False, True])
def test_loader_in_a_cycle_is_closed_by_the_collector_in_any_thread(staged: bool) -> None:
    for _ in range(5):
        loader, iterator, workers = begun(staged)
        cycle: list[Any] = [loader, iterator]
        cycle.append(cycle)
        del loader, iterator, cycle
        collecting = threading.Thread(target=gc.collect)
        collecting.start()
        collecting.join(timeout=30)
        assert not collecting.is_alive()
        assert_gone(workers)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("where", ["reader", "stager"])
def test_loader_may_be_freed_by_a_thread_of_its_own(where: str) -> None:
    # As when the collector happens to run there.
    held: list[Any] = []
    gate = threading.Event()
    calls = count(1)

    def fourth_lets_go(batch: Any, device: Any = None) -> Any:
        if threading.current_thread() is not threading.main_thread() and next(calls) == 4:
            assert gate.wait(timeout=30)
            held.clear()
        return batch

    options: dict[str, Any] = {"validate": False}
    if where == "reader":
        options |= {"batch_encoder": bytes_of, "batch_decoder": fourth_lets_go}
    loader = SwiftLoader(datasets.Numbers, {"n": 400}, **options)
    loader.start(0, to_device=fourth_lets_go if where == "stager" else None)
    workers = workers_of(loader)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    threads = [t for t in threading.enumerate() if t.name.startswith("swift_loader")]
    assert threads
    held.append(iterator)
    del loader, iterator
    gate.set()
    assert_gone(workers)
    assert not held
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()


def bytes_of(batch: Any) -> bytes:
    return repr(batch[1].tolist()).encode()


@pytest.mark.parametrize("staged", [False, True])
def test_close_in_another_thread_wakes_the_training_loop(staged: bool, tmp_path: Path) -> None:
    loader = SwiftLoader(
        datasets.Hangs,
        {"n": 40, "at": 4, "folder": tmp_path, "always": True},
        batch_size=4,
        validate=False,
    )
    loader.start(0, to_device=(lambda batch, device: batch) if staged else None)
    iterator = iter(loader)
    next(iterator)
    closing = threading.Timer(0.3, loader.close)
    closing.start()
    with pytest.raises(ClosedError, match="closed"):
        next(iterator)
    closing.join(timeout=30)
    assert not closing.is_alive()


def test_ctrl_c_ends_a_start_whose_constructor_hangs(tmp_path: Path) -> None:
    script = """
class Hangs(Dataset):
    def __init__(self):
        print("building", flush=True)
        time.sleep(1000)
loader = SwiftLoader(Hangs, validate=False, worker_per_consumer=2)
loader.start(0)
"""
    with running(script, tmp_path) as process:
        wait_for(process, "building")
        members = family(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert_gone(members)
    assert err.count("Traceback") == 1, err
    assert "KeyboardInterrupt" in err.splitlines()[-1]


def test_other_consumers_are_untouched_by_a_workers_death() -> None:
    options: dict[str, Any] = {
        "batch_size": 3,
        "nb_consumer": 2,
        "data_queue_size": 4,  # so that there is something left to make at each death
        "shuffle": True,
    }
    with (
        SwiftLoader(datasets.Numbers, {"n": 240}, **options) as one,
        SwiftLoader(datasets.Numbers, {"n": 240}, **options) as other,
    ):
        one.start(0)
        other.start(1)
        plan = plan_of(one)
        (neighbour,) = workers_of(other)
        for k, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            assert indices_of(mine) == plan.batch(0, 0, k).tolist()
            assert indices_of(theirs) == plan.batch(0, 1, k).tolist()
            if k in (3, 25):
                for worker in workers_of(one):
                    worker.kill()
        assert one.stats().restarts == 2
        assert other.stats().restarts == 0
        assert workers_of(other) == [neighbour]


class Registering(datasets.Numbers):
    """Leaves word of the end of its worker, in both of Python's ways."""

    def __init__(self, n: int, folder: str) -> None:
        super().__init__(n)
        atexit.register(Path(folder, f"atexit {os.getpid()}").touch)
        weakref.finalize(self, Path(folder, f"finalize {os.getpid()}").touch)

    def __getitem__(self, i: int) -> Any:
        # What torch has set up ends with the process, and to undo it took longer than all the rest.
        late = sum(one.atexit for one in weakref.finalize._registry)  # type: ignore[attr-defined]
        return late, i


def test_a_worker_does_at_its_end_what_the_data_set_wants_and_nothing_else(tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 4, "validate": False}
    with SwiftLoader(Registering, {"n": 8, "folder": str(tmp_path)}, **options) as loader:
        assert [batch[0].tolist() for batch in loader] == [[1] * 4] * 2
        [pid] = [worker.pid for worker in loader.stats().workers]
    psutil.wait_procs(living([pid]), 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"atexit {pid}", f"finalize {pid}"]
