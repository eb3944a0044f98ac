"""Endpoints and their workers that die, freeze, come back: every batch comes, once, in order."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from swift_loader import SwiftLoader, WorkerDiedError, WorkerTimeoutError
from swift_loader.remote.keys import load_keys
from swift_loader.remote.status import ask_status
from tests import datasets
from tests.conformance import indices_of, plan_of
from tests.process.remote.endpoints import RunningEndpoint
from tests.process.remote.lines import relay
from tests.process.scripts import running, wait_for

pytestmark = pytest.mark.usefixtures("nothing_left")

TIMEOUT_S = 3.0


def loader_of(*endpoints: RunningEndpoint, n: int = 400, **options: Any) -> SwiftLoader:
    return SwiftLoader(
        datasets.Numbers,
        {"n": n},
        **{
            "batch_size": 2,
            "shuffle": True,
            "worker_per_consumer": 0,
            "remote_workers": [endpoint.address for endpoint in endpoints],
            "remote_key": endpoints[0].key,
            "remote_timeout": TIMEOUT_S,
            "timeout": 60.0,
            **options,
        },
    )


def wanted(loader: SwiftLoader, epoch: int = 0) -> list[list[int]]:
    plan = plan_of(loader)
    return [plan.batch(epoch, 0, k).tolist() for k in range(plan.nb_batches(0))]


def taken(loader: SwiftLoader, at: int, do: Callable[[], object]) -> list[list[int]]:
    """All batches of an epoch; `do` is called after `at` of them."""
    seen = []
    for k, batch in enumerate(loader):
        seen.append(indices_of(batch))
        if k == at:
            do()
    return seen


def until(holds: Callable[[], bool], within_s: float = 15.0) -> bool:
    """Wait for what an endpoint does on its own."""
    deadline_s = time.monotonic() + within_s
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return holds()


@pytest.fixture
def two(key_file: Path) -> Iterator[tuple[RunningEndpoint, RunningEndpoint]]:
    with RunningEndpoint(1, key_file) as first, RunningEndpoint(1, key_file) as second:
        yield first, second


@pytest.mark.parametrize("how", ["kill", "pause", pytest.param("end", marks=pytest.mark.soak)])
def test_endpoint_that_goes_away_costs_no_batch_and_doubles_none(
    how: str, two: tuple[RunningEndpoint, RunningEndpoint]
) -> None:
    first, second = two
    with loader_of(first, second) as loader:
        loader.start(0)
        assert taken(loader, 30, getattr(first, how)) == wanted(loader)
        if how == "pause":
            first.go_on()  # what it answers now is not for anybody
        assert [indices_of(batch) for batch in loader] == wanted(loader, 1)


def test_endpoint_that_is_paused_and_goes_on_is_used_again(key_file: Path) -> None:
    with (
        RunningEndpoint(1, key_file) as endpoint,
        loader_of(endpoint, worker_per_consumer=1, remote_timeout=30.0) as loader,
    ):
        loader.start(0)
        assert taken(loader, 20, endpoint.pause) == wanted(loader)
        endpoint.go_on()
        assert [indices_of(batch) for batch in loader] == wanted(loader, 1)
        for epoch in range(2, 500):
            assert [indices_of(batch) for batch in loader] == wanted(loader, epoch)
            if _status(endpoint)["sessions_so_far"] == 2:
                break
        assert _status(endpoint)["sessions_so_far"] == 2


def test_endpoint_that_is_restarted_is_found_again(key_file: Path) -> None:
    with RunningEndpoint(1, key_file) as endpoint, loader_of(endpoint) as loader:
        loader.start(0)
        seen = []
        iterator = iter(loader)
        for _ in range(20):
            seen.append(indices_of(next(iterator)))
        endpoint.kill()
        with RunningEndpoint(2, key_file, endpoint.port):
            seen += [indices_of(batch) for batch in iterator]
            assert seen == wanted(loader)


@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_either_of_two_connections_that_is_cut_costs_no_batch(which: int, key_file: Path) -> None:
    with (
        RunningEndpoint(1, key_file) as endpoint,
        relay(endpoint.port) as line,
        loader_of(endpoint, remote_workers=[line.address]) as loader,
    ):
        loader.start(0)
        assert until(lambda: len(line.near) > which)
        assert taken(loader, 50, lambda: line.cut(which)) == wanted(loader)
        assert until(lambda: len(line.near) == 4)  # both anew
        assert taken(loader, 0, lambda: None) == wanted(loader, 1)


def test_without_any_worker_left_the_error_says_so(key_file: Path) -> None:
    with RunningEndpoint(1, key_file) as endpoint, loader_of(endpoint, n=5000) as loader:
        with pytest.raises(WorkerDiedError, match="no worker is left") as caught:
            taken(loader, 5, endpoint.kill)
        assert endpoint.address in str(caught.value)
        assert f"remote_timeout={TIMEOUT_S:g}" in str(caught.value)


def test_endpoint_that_was_never_there_is_done_without(key_file: Path) -> None:
    nobody = "tcp://127.0.0.1:1"
    options: dict[str, Any] = {"remote_key": key_file, "remote_timeout": 1.0}
    with SwiftLoader(datasets.Numbers, {"n": 40}, remote_workers=[nobody], **options) as loader:
        assert [i for batch in loader for i in indices_of(batch)] == list(range(40))
    with (
        SwiftLoader(
            datasets.Numbers, {"n": 40}, remote_workers=[nobody], worker_per_consumer=0, **options
        ) as loader,
        pytest.raises(WorkerDiedError, match="no worker is left") as caught,
    ):
        loader.start(0)
    assert nobody in str(caught.value)


def test_worker_of_an_endpoint_that_is_killed_costs_no_sample(endpoint: RunningEndpoint) -> None:
    with loader_of(endpoint) as loader:
        loader.start(0)

        def kill_them() -> None:
            for process in endpoint.workers():
                process.kill()

        assert taken(loader, 20, kill_them) == wanted(loader)
        assert loader.stats().restarts >= 1


def test_worker_that_dies_in_getitem_costs_no_sample(
    endpoint: RunningEndpoint, tmp_path: Path
) -> None:
    with SwiftLoader(
        datasets.Dies,
        {"n": 60, "at": 23, "how": "exit", "folder": tmp_path},
        batch_size=4,
        data_queue_size=4,  # so that the next epoch's batch of it is not made meanwhile
        worker_per_consumer=0,
        validate=False,
        remote_workers=[endpoint.address],
        remote_key=endpoint.key,
    ) as loader:
        assert [i for batch in loader for i in indices_of(batch)] == list(range(60))
        assert loader.stats().restarts == 1


def test_batch_that_kills_two_workers_is_an_error_that_names_it(
    endpoint: RunningEndpoint, tmp_path: Path
) -> None:
    with SwiftLoader(
        datasets.Dies,
        {"n": 40, "at": 13, "how": "exit", "folder": tmp_path, "always": True},
        batch_size=4,
        data_queue_size=4,  # so that only this epoch's batch of sample 13 is ever made
        worker_per_consumer=0,
        validate=False,
        remote_workers=[endpoint.address],
        remote_key=endpoint.key,
    ) as loader:
        with pytest.raises(WorkerDiedError) as caught:
            list(loader)
        assert "batch 3 of epoch 0" in str(caught.value)
        assert "code 7" in str(caught.value)


def test_timeout_shows_where_the_far_worker_hangs(
    endpoint: RunningEndpoint, tmp_path: Path
) -> None:
    with SwiftLoader(
        datasets.Hangs,
        {"n": 20, "at": 9, "folder": tmp_path, "always": True},
        batch_size=2,
        worker_per_consumer=0,
        validate=False,
        timeout=2.0,
        remote_workers=[endpoint.address],
        remote_key=endpoint.key,
    ) as loader:
        with pytest.raises(WorkerTimeoutError) as caught:
            list(loader)
        assert "in __getitem__" in str(caught.value)
        assert "sample 9" in str(caught.value)


def test_timeout_shows_a_far_worker_that_is_being_started(
    endpoint: RunningEndpoint, tmp_path: Path
) -> None:
    with SwiftLoader(
        datasets.BornOnce,
        {"n": 20, "folder": tmp_path},
        batch_size=2,
        worker_per_consumer=0,
        validate=False,
        timeout=2.0,
        remote_workers=[endpoint.address],
        remote_key=endpoint.key,
    ) as loader:
        with pytest.raises(WorkerTimeoutError) as caught:
            list(loader)
        assert "there, which is being started" in str(caught.value)
        assert "in wait_in_the_constructor" in str(caught.value)
        assert "wait for a worker" in str(caught.value)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)]
)
def test_endpoint_ends_cleanly_when_told(number: int, key_file: Path) -> None:
    with RunningEndpoint(2, key_file) as endpoint, loader_of(endpoint, n=4000) as loader:
        next(iter(loader))
        family = psutil.Process(endpoint.pid).children(recursive=True)
        assert len(family) >= 2
        assert endpoint.end(number) == 0
        assert until(lambda: not any(process.is_running() for process in family))
    assert any("session 1 begins" in line for line in endpoint.log)
    assert not any("Traceback" in line for line in endpoint.log)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_training_that_dies_frees_its_session(
    how: int, endpoint: RunningEndpoint, tmp_path: Path
) -> None:
    script = f"""
loader = SwiftLoader(Dataset, {{"n": 10**6}}, batch_size=8, worker_per_consumer=0,
                     remote_workers=[{endpoint.address!r}], remote_key={str(endpoint.key)!r})
for k, batch in enumerate(loader):
    if k == 20:
        print("runs", flush=True)
"""
    with running(script, tmp_path) as process:
        wait_for(process, "runs")
        assert endpoint.workers()
        process.send_signal(how)
        assert until(lambda: not endpoint.workers(), within_s=30)


def test_dataset_that_can_not_be_built_there_is_an_error_at_start(
    endpoint: RunningEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here_for_this_test.py").write_text(
        "class Dataset:\n"
        "    def __len__(self):\n        return 4\n"
        "    def __getitem__(self, i):\n        return i\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here_for_this_test as module  # type: ignore[import-not-found]

    try:
        with (
            SwiftLoader(
                module.Dataset,
                worker_per_consumer=0,
                remote_workers=[endpoint.address],
                remote_key=endpoint.key,
            ) as loader,
            pytest.raises(ModuleNotFoundError, match="only_here_for_this_test") as caught,
        ):
            loader.start(0)
        assert endpoint.address in str(caught.value.__cause__)
    finally:
        del sys.modules["only_here_for_this_test"]


def test_two_trainings_share_the_workers_and_free_them(key_file: Path) -> None:
    with RunningEndpoint(2, key_file) as endpoint:
        with loader_of(endpoint, n=600) as first:
            iterator = iter(first)
            seen = [indices_of(next(iterator)) for _ in range(3)]
            assert until(lambda: len(endpoint.workers()) == 2)
            with loader_of(endpoint, n=100) as second:
                assert [indices_of(batch) for batch in second] == wanted(second)
                assert until(lambda: len(endpoint.workers()) == 2)
                seen += [indices_of(batch) for batch in iterator]
                assert seen == wanted(first)
            assert until(lambda: _live_sessions(endpoint) == 1)
        assert until(lambda: not endpoint.workers())


def test_one_copy_of_a_dataset_serves_all_consumers(endpoint: RunningEndpoint) -> None:
    with (
        loader_of(endpoint, n=100, nb_consumer=2) as first,
        loader_of(endpoint, n=100, nb_consumer=2) as second,
    ):
        first.start(0)
        second.start(1)
        seen = [i for loader in (first, second) for batch in loader for i in indices_of(batch)]
        assert sorted(seen) == list(range(100))
        sizes = [s["batches"] for s in _status(endpoint)["sessions"]]
        assert len(sizes) == 2
        assert _status(endpoint)["datasets_bytes"] == os.fstat(first._engine.payload_fd).st_size


def _status(endpoint: RunningEndpoint) -> dict[str, Any]:
    return ask_status(endpoint.address, load_keys(endpoint.key), timeout_s=20.0)


def _live_sessions(endpoint: RunningEndpoint) -> int:
    return len(_status(endpoint)["sessions"])
