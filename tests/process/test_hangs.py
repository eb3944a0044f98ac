"""Batches that do not come: the error says where each worker is; or the worker is replaced."""

from __future__ import annotations

import fcntl
import select
import signal
import time
import warnings
from pathlib import Path

import pytest

from swift_loader import SwiftLoader, WorkerDiedError, WorkerTimeoutError
from swift_loader.pipeline import slow_start
from swift_loader.pipeline.link import Event, Gone, Up
from swift_loader.pipeline.local import LocalLink
from swift_loader.worker.place import Place
from tests import datasets
from tests.conformance import indices_of
from tests.process.test_crashes import remaining, workers_of

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("in_order", [True, False])
def test_timeout_names_worker_sample_and_stack(in_order: bool, tmp_path: Path) -> None:
    with SwiftLoader(
        datasets.Hangs,
        {"n": 40, "at": 9, "folder": tmp_path, "always": True},
        batch_size=4,
        worker_per_consumer=2,
        data_queue_size=4,
        timeout=1.0,
        in_order=in_order,
        validate=False,
    ) as loader:
        with pytest.raises(WorkerTimeoutError) as caught:
            list(loader)
        story = str(caught.value)
    assert "sample 9" in story
    assert "wait_for_a_lock_that_is_never_released" in story
    assert "worker " in story
    if in_order:
        assert "batch 2 of epoch 0" in story


def test_hung_worker_is_replaced_when_asked_for(tmp_path: Path) -> None:
    with SwiftLoader(
        datasets.Hangs,
        {"n": 40, "at": 9, "folder": tmp_path},
        batch_size=4,
        data_queue_size=4,  # so that the next epoch's batch of it is not made meanwhile
        worker_per_consumer=2,
        timeout=1.0,
        on_timeout="restart",
        validate=False,
    ) as loader:
        assert remaining(iter(loader)) == list(range(40))
        assert loader.stats().restarts == 1


def test_sample_that_always_hangs_ends_in_an_error_with_its_stack(tmp_path: Path) -> None:
    with SwiftLoader(
        datasets.Hangs,
        {"n": 40, "at": 9, "folder": tmp_path, "always": True},
        batch_size=4,
        timeout=0.5,
        on_timeout="restart",
        validate=False,
    ) as loader:
        with pytest.raises(WorkerDiedError, match="wait_for_a_lock_that_is_never_released"):
            list(loader)


def test_stopped_worker_is_named_as_stopped() -> None:
    with SwiftLoader(datasets.Numbers, {"n": 4000}, batch_size=4, timeout=0.5) as loader:
        iterator = iter(loader)
        next(iterator)
        (worker,) = workers_of(loader)
        worker.send_signal(signal.SIGSTOP)
        with pytest.raises(WorkerTimeoutError, match="stopped"):
            for _ in range(100):
                next(iterator)
        worker.send_signal(signal.SIGCONT)
        assert indices_of(next(iterator))  # and the loop may go on


def test_loop_may_go_on_after_a_timeout_and_loses_nothing(tmp_path: Path) -> None:
    with SwiftLoader(
        datasets.Slow, {"n": 6, "delay_s": 1.0}, timeout=0.4, validate=False
    ) as loader:
        iterator = iter(loader)
        seen: list[int] = []
        while len(seen) < 6:
            try:
                seen += indices_of(next(iterator))
            except WorkerTimeoutError:
                continue
        assert seen == list(range(6))


def test_a_worker_that_is_asked_for_its_stack_as_soon_as_it_runs_lives_on() -> None:
    with SwiftLoader(datasets.Numbers, {"n": 4}, batch_size=2, validate=False) as loader:
        launcher, fd = loader._engine._launcher, loader._engine.payload_fd
        assert launcher is not None
        for worker in range(5):
            link = LocalLink(launcher, worker, Place(0, 1, 1, 0, None), fd, 1)
            events: list[Event] = []
            while not events:
                select.select(link.filenos(), [], [])
                events += link.receive()
            link.stack()
            while not any(isinstance(event, (Up, Gone)) for event in events):
                select.select(link.filenos(), [], [])
                events += link.receive()
            assert isinstance(events[-1], Up)
            link.close()
            link.wait_closed(time.monotonic() + 10)


@pytest.mark.parametrize("validate", [False, True])
def test_start_that_takes_long_is_said_with_the_line_where_the_constructor_is(
    validate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_start, "WARNS_AFTER_S", 0.5)
    file = tmp_path / "locked"
    said: list[str] = []
    with file.open("w") as locked, warnings.catch_warnings():
        fcntl.flock(locked, fcntl.LOCK_EX)

        def go_on(message: Warning | str, *of: object) -> None:
            said.append(str(message))
            if "in __init__" in said[-1]:
                fcntl.flock(locked, fcntl.LOCK_UN)

        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", go_on)
        arguments = {"n": 40, "file": file}
        with SwiftLoader(datasets.BornLate, arguments, batch_size=4, validate=validate) as loader:
            assert remaining(iter(loader)) == list(range(40))
    assert any("takes long, or hangs" in text and "in __init__" in text for text in said)
