"""Strangers, other keys, and lines that do harm: the others go on, and no batch is wrong."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from swift_loader import ConfigError, SwiftLoader, WorkerDiedError
from swift_loader.remote.keys import Keys, load_keys
from swift_loader.remote.status import ask_status
from tests import datasets
from tests.conformance import indices_of, plan_of
from tests.process.remote.endpoints import RunningEndpoint
from tests.process.remote.lines import Flips, relay

pytestmark = pytest.mark.usefixtures("nothing_left")

NB_STRANGERS = 400
NB_DESCRIPTORS = 256
TIMEOUT_S = 2.0


def loader_of(address: str, key: Path | None, **options: Any) -> SwiftLoader:
    return SwiftLoader(
        datasets.Numbers,
        {"n": 400},
        **{
            "batch_size": 2,
            "shuffle": True,
            "worker_per_consumer": 0,
            "remote_workers": [address],
            "remote_key": key,
            "remote_timeout": TIMEOUT_S,
            "timeout": 60.0,
            **options,
        },
    )


def wanted(loader: SwiftLoader, epoch: int = 0) -> list[list[int]]:
    plan = plan_of(loader)
    return [plan.batch(epoch, 0, k).tolist() for k in range(plan.nb_batches(0))]


def status_of(endpoint: RunningEndpoint) -> dict[str, Any]:
    keys = None if endpoint.key is None else load_keys(endpoint.key)
    return ask_status(endpoint.address, keys, timeout_s=20.0)


@contextmanager
def idle_connections(endpoint: RunningEndpoint, count: int) -> Iterator[None]:
    """That many, from which no byte comes."""
    with ExitStack() as held:
        for _ in range(count):
            if endpoint.port:
                end = socket.create_connection(("127.0.0.1", endpoint.port))
            else:
                end = socket.socket(socket.AF_UNIX)
                end.connect(endpoint.address.removeprefix("ipc://"))
            held.enter_context(end)
        yield


def nb_connections(endpoint: RunningEndpoint) -> int:
    """How many it has accepted and holds."""
    process = psutil.Process(endpoint.pid)
    if endpoint.port:
        return len(process.net_connections("tcp"))
    path = endpoint.address.removeprefix("ipc://")
    return sum(one.laddr == path for one in process.net_connections("unix"))


def test_unix_socket_needs_descriptors_and_says_so(key_file: Path, tmp_path: Path) -> None:
    bind = f"ipc://{tmp_path}/endpoint"
    with RunningEndpoint(1, key_file, nb_descriptors=NB_DESCRIPTORS, bind=bind) as endpoint:
        assert endpoint.process.wait(20) == 1
    assert any("2048 are wanted there, and 256 are to be had" in line for line in endpoint.log)
    assert not any("Traceback" in line for line in endpoint.log)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_unix_socket_lets_no_other_user_in(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with RunningEndpoint(1, bind=f"ipc://{folder}/endpoint") as endpoint:
            for path in (folder, f"{folder}/endpoint"):
                os.chmod(path, 0o777)
            if (pid := os.fork()) == 0:
                os.setuid(65534)
                end = socket.socket(socket.AF_UNIX)
                end.settimeout(20)
                end.connect(f"{folder}/endpoint")
                os._exit(7 if not end.recv(1) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            assert status_of(endpoint)["sessions"] == []
    assert not any("WARNING" in line for line in endpoint.log)


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_flood_of_idle_connections_harms_nobody(
    scheme: str, key_file: Path, tmp_path: Path
) -> None:
    bind, nb_descriptors, most_held = "", NB_DESCRIPTORS, NB_DESCRIPTORS // 8
    if scheme == "ipc":
        bind, nb_descriptors, most_held = f"ipc://{tmp_path}/endpoint", 2048, 64
    with (
        RunningEndpoint(2, key_file, nb_descriptors=nb_descriptors, bind=bind) as endpoint,
        loader_of(endpoint.address, key_file, remote_timeout=20.0) as first,
    ):
        iterator = iter(first)
        seen = [indices_of(next(iterator)) for _ in range(5)]
        with idle_connections(endpoint, NB_STRANGERS):
            for worker in endpoint.workers():
                worker.kill()
            seen += [indices_of(batch) for batch in iterator]
            assert seen == wanted(first)
            with loader_of(endpoint.address, key_file, remote_timeout=20.0) as second:
                assert [indices_of(batch) for batch in second] == wanted(second)
            assert nb_connections(endpoint) <= most_held + 4
        kept_out = 0
        deadline_s = time.monotonic() + 20
        while kept_out < NB_STRANGERS and time.monotonic() < deadline_s:
            kept_out = status_of(endpoint)["kept_out"]
        assert kept_out >= NB_STRANGERS
    whence = {"tcp": "127.0.0.1", "ipc": f"process {os.getpid()} of user {os.getuid()}"}[scheme]
    assert any(line.rstrip().endswith(f"hold the key: from {whence}") for line in endpoint.log)
    assert not any("Traceback" in line for line in endpoint.log)


def test_session_that_there_is_no_room_for_is_refused_plainly(
    endpoint: RunningEndpoint, key_file: Path
) -> None:
    nb_idle = psutil.Process(endpoint.pid).num_fds()
    with (
        RunningEndpoint(1, key_file, nb_descriptors=nb_idle + 20) as endpoint,
        # the endpoint says so at its next tick, a second later at most; a busy machine takes longer
        loader_of(endpoint.address, key_file, remote_timeout=4.0) as loader,
    ):
        with pytest.raises(WorkerDiedError, match="descriptors are left"):
            loader.start(0)
        assert status_of(endpoint)["sessions"] == []


def test_peer_with_another_key_is_counted_and_logged(key_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    Keys.generate().write(other)
    with RunningEndpoint(1, key_file) as endpoint:
        with loader_of(endpoint.address, other) as loader, pytest.raises(ConfigError):
            loader.start(0)
        deadline_s = time.monotonic() + 20
        while not status_of(endpoint)["kept_out"] and time.monotonic() < deadline_s:
            pass
        assert status_of(endpoint)["kept_out"] >= 1
    assert any("did not prove to hold the key: from 127.0.0.1" in line for line in endpoint.log)


@pytest.mark.parametrize(
    "how", ["another key", "hangs up", pytest.param("no key", marks=pytest.mark.soak)]
)
def test_endpoint_that_comes_back_as_another_is_given_up_and_local_workers_go_on(
    how: str, key_file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.key"
    Keys.generate().write(other)
    with (
        RunningEndpoint(1, key_file) as endpoint,
        relay(endpoint.port) as line,
        ExitStack() as then,
    ):
        loader = then.enter_context(loader_of(line.address, key_file, worker_per_consumer=1))
        iterator = iter(loader)
        seen = [indices_of(next(iterator)) for _ in range(20)]
        endpoint.kill()
        line.hangs_up = how == "hangs up"
        if how != "hangs up":
            key = None if how == "no key" else other
            then.enter_context(RunningEndpoint(1, key, endpoint.port))
        seen += [indices_of(batch) for batch in iterator]
        assert seen == wanted(loader)
        deadline_s = time.monotonic() + 1.5 * TIMEOUT_S
        epoch = 1
        while time.monotonic() < deadline_s:
            assert [indices_of(batch) for batch in loader] == wanted(loader, epoch)
            epoch += 1


@pytest.mark.parametrize(
    ("with_key", "toward"),
    [
        (False, "endpoint"),
        (True, "training"),
        pytest.param(False, "training", marks=pytest.mark.soak),
        pytest.param(True, "endpoint", marks=pytest.mark.soak),
    ],
)
def test_flipped_bits_are_noticed_and_asked_again(
    with_key: bool, toward: str, key_file: Path
) -> None:
    key = key_file if with_key else None
    with RunningEndpoint(1, key) as endpoint, relay(endpoint.port) as line:
        flips = Flips(every_bytes=6000, most=5)
        with loader_of(line.address, key) as loader:
            loader.start(0)
            if toward == "training":
                line.up = flips
            else:
                line.down = flips
            for epoch in range(6):
                assert [indices_of(batch) for batch in loader] == wanted(loader, epoch)
        assert flips.count == 5
