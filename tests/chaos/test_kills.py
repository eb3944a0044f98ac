"""Workers, what they are forked from, endpoints, Ray's actors: killed, stopped, hit by faults."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from swift_loader.errors import LoaderError
from tests.chaos.hits import ROLES, Victims, descendants, hitting, workers
from tests.chaos.seeds import rounds
from tests.chaos.setups import WORKERS, Setup, batches_of, every, loader_of, undisturbed
from tests.process.remote.endpoints import RunningEndpoint
from tests.process.scripts import ROOT

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(240),  # actors of Ray take their time where much else runs
]
nothing_left = pytest.mark.usefixtures("nothing_left")


def within_s() -> float:
    """How long a batch or an error may take: ten seconds; more where other tests have the CPUs."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return 10.0
    return 10.0 * max(2.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Progress:
    """Notes the longest wait for a batch, and breaks off an epoch now and then."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._at_s = time.monotonic()

    def __call__(self) -> None:
        now_s = time.monotonic()
        self.longest_s = max(self.longest_s, now_s - self._at_s)
        self._at_s = now_s


def endure(
    setup: Setup,
    role: str,
    seed: int,
    nb_hits: int,
    victims: Victims | None = None,
    afterwards: Callable[[int], None] | None = None,
    **options: Any,
) -> Counter[str]:
    """Epochs until all hits were made; compares each. Returns what happened, by kind."""
    want = undisturbed(setup)
    what: Counter[str] = Counter()
    with hitting(victims or ROLES[role], seed, nb_hits, afterwards=afterwards) as hits:
        while not hits.over:
            progress = Progress()
            try:
                with loader_of(setup, **options) as loader:
                    for epoch in range(3):
                        assert batches_of(setup, loader, progress) == want[epoch], (setup, epoch)
                        progress()
                        what["epochs"] += 1
                    what["restarts"] += loader.stats().restarts
            except LoaderError as error:
                progress()
                what[type(error).__name__] += 1
                print(type(error).__name__, str(error)[:300])
                assert progress.longest_s < within_s(), (setup, progress.longest_s)
    what.update({f"hit: {how}": count for how, count in hits.done.items()})
    return what


SHORT = [
    Setup("map", "plain"),
    Setup("map", "staged", in_order=False),
    Setup("stream", "decoder", tail="drop"),
    Setup("sampled", "threads"),
]


@nothing_left
@pytest.mark.parametrize("setup", SHORT, ids=lambda setup: setup.name)
def test_workers_that_are_hit_cost_no_batch(setup: Setup) -> None:
    what = endure(setup, "workers", seed=len(setup.name), nb_hits=8)
    assert what["epochs"] > 0


def test_processes_to_fork_from_that_are_hit_cost_no_batch() -> None:
    endure(Setup(), "zygotes", seed=1, nb_hits=1)
    # The hit may have come after the last worker was asked for: the next loader starts another one.
    with loader_of(Setup()) as loader:
        assert batches_of(Setup(), loader) == undisturbed(Setup())[0]
    assert not workers()


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("role", "nb_rounds"), [("workers", 44), ("zygotes", 44)])
def test_local_kills_for_long(role: str, nb_rounds: int) -> None:
    setups = [setup for setup in every() if setup.place == "local"]
    what: Counter[str] = Counter()
    for seed in rounds(nb_rounds):
        what += endure(setups[seed % len(setups)], role, seed, 20 if role == "workers" else 5)
        assert not workers()
    print(what)


# ---- endpoints


class Endpoints:
    """Some, each of which is started again, at its address, where it was ended."""

    def __init__(self, count: int, key: Path) -> None:
        self._key = key
        self._lock = threading.Lock()
        self._running = [RunningEndpoint(1, key) for _ in range(count)]

    @property
    def addresses(self) -> list[str]:
        return [one.address for one in self._running]

    def pids(self) -> list[int]:
        with self._lock:
            return [one.pid for one in self._running]

    def below(self) -> list[int]:
        """Their processes to fork from, and workers."""
        return [process.pid for pid in self.pids() for process in descendants(pid)]

    def start_again(self, pid: int) -> None:
        with self._lock:
            at = next(i for i, one in enumerate(self._running) if one.pid == pid)
            gone = self._running[at]
        gone.process.wait(20)
        gone.__exit__(None, None, None)
        again = RunningEndpoint(1, self._key, gone.port)
        with self._lock:
            self._running[at] = again

    def close(self) -> None:
        for one in self._running:
            one.__exit__(None, None, None)


@pytest.fixture
def endpoints(tmp_path: Path) -> Iterator[Endpoints]:
    """Two."""
    pytest.importorskip("zmq")
    from swift_loader.remote.keys import Keys

    Keys.generate().write(tmp_path / "key")
    both = Endpoints(2, tmp_path / "key")
    yield both
    both.close()


def endure_remote(
    endpoints: Endpoints, setup: Setup, role: str, seed: int, nb_hits: int, key: Path
) -> Counter[str]:
    """As `endure`, for endpoints or what runs below them."""
    found = partial(
        endure, setup, role, seed, nb_hits,
        victims=endpoints.pids if role == "endpoints" else endpoints.below,
        afterwards=endpoints.start_again if role == "endpoints" else None,
        remote_workers=endpoints.addresses, remote_key=key, remote_timeout=60.0,
    )  # fmt: skip
    return found()


@nothing_left
def test_endpoints_that_are_hit_cost_no_batch(endpoints: Endpoints, tmp_path: Path) -> None:
    setup = Setup("sampled", "staged", "remote")
    endure_remote(endpoints, setup, "below endpoints", 2, 2, tmp_path / "key")
    endure_remote(endpoints, Setup(place="remote"), "endpoints", 3, 1, tmp_path / "key")


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("role", "nb_rounds", "nb_hits"), [("endpoints", 40, 5), ("below endpoints", 32, 10)]
)
def test_remote_kills_for_long(
    role: str, nb_rounds: int, nb_hits: int, endpoints: Endpoints, tmp_path: Path
) -> None:
    setups = [setup for setup in every() if setup.place == "remote"]
    what: Counter[str] = Counter()
    for seed in rounds(nb_rounds):
        setup = setups[seed % len(setups)]
        what += endure_remote(endpoints, setup, role, seed, nb_hits, tmp_path / "key")
    print(what)


# ---- Ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """On this machine, with room for actors that take the place of those that are hit."""
    ray = pytest.importorskip("ray")
    ray.init(
        num_cpus=2 * WORKERS,
        object_store_memory=200 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
        include_dashboard=False,
        log_to_driver=False,
    )
    yield
    ray.shutdown()


def endure_ray(setup: Setup, seed: int, nb_hits: int) -> Counter[str]:
    """As `endure`, for actors."""
    from swift_loader.remote import RayWorkers

    return endure(setup, "ray actors", seed, nb_hits, remote_workers=RayWorkers(WORKERS))


@pytest.mark.usefixtures("cluster")
def test_ray_actors_that_are_hit_cost_no_batch() -> None:
    what = endure_ray(Setup("sampled", "staged", "ray"), seed=4, nb_hits=1)
    assert what["epochs"] > 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.usefixtures("cluster")
def test_ray_kills_for_long() -> None:
    setups = [setup for setup in every() if setup.place == "ray"]
    what: Counter[str] = Counter()
    for seed in rounds(48):
        what += endure_ray(setups[seed % len(setups)], seed, 5)
    print(what)
