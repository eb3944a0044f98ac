"""What every test may use, and what every test must leave behind: nothing."""

from __future__ import annotations

import gc
import multiprocessing.forkserver
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

from swift_loader.batch.seeding import generators_untouched
from swift_loader.worker.launch import Zygote

# A process to fork from, whose own parent was killed, sees that once it has imported torch.
_LINGER_S = 15.0


# How long an example takes depends on who else runs: no test is about that.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


def pytest_configure() -> None:
    """A job in a shell's background ignores Ctrl-C, and its children would: tests send it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Nothing that is imported by now is garbage: `gc.collect` need not look at it in each test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_folder_of_ray() -> Iterator[None]:
    """`ray.init()` joins the cluster that was last started in this folder: that of another test."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as own:
        os.environ["RAY_TMPDIR"] = own  # short: sockets lie in it
        yield


@pytest.fixture(autouse=True)
def own_seed() -> Iterator[None]:
    """A test may seed torch, which is the default seed of loaders: not those of other tests.

    Nor are there generators of a batch that another test has made in this process.
    """
    with generators_untouched():
        yield


class Inventory:
    """Processes, threads, descriptors and shared memory of this process, now."""

    def __init__(self) -> None:
        me = psutil.Process()
        self.processes = {
            child.pid: _as_told(child)
            for child in me.children(recursive=True)
            if "resource_tracker" not in " ".join(_command(child))
        }
        self.threads = {t.ident: t.name for t in threading.enumerate()}
        self.descriptors = set(_descriptors())
        self.regions = sum(
            "swift_loader" in line for line in Path("/proc/self/maps").read_text().splitlines()
        )

    def more_than(self, before: Inventory) -> dict[str, object]:
        """What there is now and was not before."""
        found: dict[str, object] = {
            "processes": {p: c for p, c in self.processes.items() if p not in before.processes},
            "threads": {i: n for i, n in self.threads.items() if i not in before.threads},
            "descriptors": [
                os.readlink(f"/proc/self/fd/{fd}")
                for fd in self.descriptors - before.descriptors
                if os.path.exists(f"/proc/self/fd/{fd}")
            ],
            "regions": max(0, self.regions - before.regions),
        }
        return {name: what for name, what in found.items() if what}


def _as_told(process: psutil.Process) -> str:
    try:
        return f"child of {process.ppid()}, {process.status()}: {' '.join(_command(process))}"
    except psutil.Error:
        return "gone"


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _descriptors() -> Iterator[int]:
    for name in os.listdir("/proc/self/fd"):
        if os.path.exists(f"/proc/self/fd/{name}"):
            yield int(name)


@pytest.fixture(scope="session")
def shared_zygote() -> Iterator[Zygote]:
    """Keeps one process to fork workers from, so that torch is imported once for all tests."""
    zygote = Zygote.acquire()
    yield zygote
    zygote.release()


@pytest.fixture(scope="session")
def shared_forkserver() -> None:
    """Where torch's `DataLoader` starts one for its workers (since Python 3.14), it stays."""
    if multiprocessing.get_all_start_methods()[0] == "forkserver":
        multiprocessing.forkserver.ensure_running()


@pytest.fixture
def nothing_left(shared_zygote: Zygote, shared_forkserver: None) -> Iterator[None]:
    """Fails the test that leaves a process, a thread, a descriptor or shared memory behind."""
    gc.collect()
    before = Inventory()
    yield
    deadline_s = time.monotonic() + _LINGER_S
    while True:
        gc.collect()
        Zygote.end_idle()  # it would stay for the next loader
        left = Inventory().more_than(before)
        if not left or time.monotonic() > deadline_s:
            break
        time.sleep(0.05)  # a killed process is reaped a moment later
    assert not left
