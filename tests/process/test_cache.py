"""A cache changes nothing but the time: the same batches, whatever is kept, and whoever dies."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import sys
import threading
import time
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from swift_loader import ConfigError, SwiftLoader
from swift_loader.cache import Cache, client, current
from tests import datasets
from tests.process.test_crashes import workers_of

pytestmark = pytest.mark.usefixtures("nothing_left")

_N = 60
_MARK = "SWIFT_LOADER_TEST_CACHE"


class Counted:
    """Samples of many types; each making is a line in a file."""

    def __init__(self, path: str, n: int = _N, slow_s: float = 0.0) -> None:
        self.path, self.n, self.slow_s = path, n, slow_s

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict[str, Any]:
        with open(self.path, "a") as file:
            file.write(f"{i}\n")
        time.sleep(self.slow_s)
        return {
            "row": torch.arange(600) + i,
            "array": np.full((3, 5), i, np.float32).T,
            "text": f"sample {i}" * (i % 5),
            "pair": (i, float(i)),
            "bits": torch.full((4,), i, dtype=torch.bfloat16),
        }


class Async(Counted):
    """A sample says how many were under way when it was asked for."""

    under_way = 0

    async def __getitem__(self, i: int) -> dict[str, Any]:  # type: ignore[override]
        self.under_way += 1
        under_way = self.under_way
        await asyncio.sleep(self.slow_s)
        self.under_way -= 1
        with open(self.path, "a") as file:
            file.write(f"{i}\n")
        return {"row": torch.arange(600) + i, "under_way": under_way}


class AsyncMany(Async):
    async def __getitems__(self, indices: list[int]) -> list[Any]:
        return await asyncio.gather(*(super(AsyncMany, self).__getitem__(i) for i in indices))


class Drawing(datasets.Numbers):
    def __getitem__(self, i: int) -> Any:
        return super().__getitem__(i)[0] + torch.rand(1), i


class ByHand(Counted):
    """Keeps by hand what is expensive, and draws besides."""

    def __getitem__(self, i: int) -> dict[str, Any]:
        kept = current().get(("file", i), lambda: super(ByHand, self).__getitem__(i))
        kept["row"] += 1000  # one's own
        return {"row": kept["row"], "draw": random.random()}


class Locked(datasets.Numbers):
    """Its arguments can't be told apart from those of another one."""

    def __init__(self, n: int, offset: int = 0) -> None:
        super().__init__(n)
        self.offset, self.lock = offset, threading.Lock()

    def __getitem__(self, i: int) -> Any:
        return i + self.offset


class Stream(torch.utils.data.IterableDataset[Any]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Any:
        return iter(range(self.n))


class Sized:
    """Samples of a size that is told later."""

    def __init__(self, n: int) -> None:
        self.n, self.size = n, 1

    def __len__(self) -> int:
        return self.n

    def resize(self, size: int) -> None:
        self.size = size

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((self.size,), i)


class Looking(datasets.Numbers):
    """Writes down how many stores there are when it is built."""

    def __init__(self, n: int, path: str, mark: str) -> None:
        super().__init__(n)
        with open(path, "a") as file:
            file.write(f"{len(stores(mark))}\n")


def augment(sample: dict[str, Any]) -> dict[str, Any]:
    sample["row"] *= 2  # in place, as transforms do
    sample["draw"] = random.random()
    return sample


def made(path: Path) -> Counter[int]:
    return Counter(map(int, path.read_text().split())) if path.exists() else Counter()


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else
        [part.tolist() for part in value] if name == "pair" else value
        for name, value in batch.items()
    }  # fmt: skip


def epochs(loader: SwiftLoader, count: int = 3) -> list[list[Any]]:
    return [[plain(batch) for batch in loader] for _ in range(count)]


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """What the stores of this test have in their environment."""
    mark = secrets.token_hex(8)
    monkeypatch.setenv(_MARK, mark)
    return mark


def stores(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            store = "swift_loader.cache.process" in " ".join(process.cmdline())
            if store and process.environ().get(_MARK) == mark and process.is_running():
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made"


@pytest.fixture
def want(tmp_path: Path) -> list[list[Any]]:
    with SwiftLoader(Counted, {"path": str(tmp_path / "plain")}, **OPTIONS) as loader:
        return epochs(loader)


OPTIONS: dict[str, Any] = {
    "batch_size": 7,
    "shuffle": True,
    "seed": 4,
    "validate": False,
    "worker_per_consumer": 0,
}
_SAMPLE_BYTES = 8 * 600 + 500


@pytest.mark.parametrize(
    ("size", "others"),
    [
        ("1MB", {"worker_per_consumer": 2}),
        (_N * _SAMPLE_BYTES // 2, {"worker_per_consumer": 2}),
        (300, {}),
        ("1MB", {"threads_per_worker": 3, "worker_per_consumer": 1}),
    ],
)
def test_batches_are_those_without_a_cache(
    size: int | str, others: dict[str, Any], path: Path, want: list[list[Any]]
) -> None:
    with SwiftLoader(Counted, {"path": str(path)}, cache=size, **{**OPTIONS, **others}) as loader:
        assert epochs(loader) == want
        figures = loader.stats().cache
    assert figures is not None
    assert figures.memory_used <= figures.memory_size
    times = made(path)
    assert len(times) == _N
    if size == "1MB":
        assert set(times.values()) == {1}
        assert figures.hits > _N
    elif size != 300:
        assert figures.hits > _N // 3


def test_a_transform_gets_a_sample_of_its_own_each_time(path: Path, tmp_path: Path) -> None:
    options = {**OPTIONS, "transform": augment}
    with SwiftLoader(Counted, {"path": str(tmp_path / "plain")}, **options) as loader:
        want = epochs(loader)
    options["worker_per_consumer"] = 2
    with SwiftLoader(Counted, {"path": str(path)}, cache="1MB", **options) as loader:
        assert epochs(loader) == want
    assert want[0] != want[1]


def test_store_starts_while_workers_do(path: Path, mark: str) -> None:
    from tests.process.scripts import assert_gone

    kwargs = {"n": 8, "path": str(path), "mark": mark}
    with SwiftLoader(Looking, kwargs, cache="1MB", worker_per_consumer=1) as loader:
        loader.start()
    assert path.read_text().split() == ["0", "1"]  # in the trial of one batch, and in the worker
    assert_gone(stores(mark))


def test_two_ranks_make_each_sample_once(path: Path) -> None:
    options = {**OPTIONS, "nb_consumer": 2, "worker_per_consumer": 1, "cache": "1MB"}
    with (
        SwiftLoader(Counted, {"path": str(path)}, **options) as one,
        SwiftLoader(Counted, {"path": str(path)}, **options) as two,
    ):
        one.start(0)
        two.start(1)
        for _ in range(3):
            rows = [
                int(row) for pair in zip(one, two, strict=True) for batch in pair
                for row in batch["row"][:, 0]
            ]  # fmt: skip
            assert sorted(rows) == list(range(_N))
        figures, metrics = two.stats().cache, two.metrics()
    assert metrics["swift_loader_cache_memory_bytes"] > _N * 8 * 600
    assert set(made(path).values()) == {1}
    assert figures is not None
    assert figures.kept == _N


def test_what_another_process_makes_is_not_made_twice(path: Path) -> None:
    options = {**OPTIONS, "worker_per_consumer": 1, "cache": Cache("1MB", key="k")}
    with (
        SwiftLoader(Counted, {"path": str(path), "slow_s": 0.005}, **options) as one,
        SwiftLoader(Counted, {"path": str(path), "slow_s": 0.005}, **options) as two,
    ):
        one.start()
        two.start()
        for first, second in zip(one, two, strict=True):
            assert plain(first) == plain(second)
    assert set(made(path).values()) == {1}


@pytest.mark.parametrize("kind", [Async, AsyncMany])
@pytest.mark.parametrize("cache", [None, "2MB"])
def test_coroutines_give_samples_and_many_wait_at_once(
    kind: Any, cache: str | None, path: Path
) -> None:
    kwargs = {"path": str(path), "slow_s": 0.02, "n": 240}
    options = {**OPTIONS, "batch_size": 4, "worker_per_consumer": 1, "cache": cache}
    with SwiftLoader(kind, kwargs, **options) as loader:
        batches = list(loader)
    rows = [int(row) for batch in batches for row in batch["row"][:, 0]]
    assert sorted(rows) == list(range(240))
    most = max(int(batch["under_way"].max()) for batch in batches)
    assert most >= (8 if cache is None else 50)  # without: those of two batches
    if cache is not None:
        assert set(made(path).values()) == {1}


def test_samples_that_raise_are_as_without_a_cache(path: Path) -> None:
    for cache in (None, "1MB"):
        with SwiftLoader(
            datasets.Raises, {"n": 12, "bad": (5,)}, batch_size=4, cache=cache, on_error="skip"
        ) as loader:
            for _ in range(2):
                assert [len(batch[1]) for batch in loader] == [4, 3, 4]
            assert set(loader.stats().skipped) == {5}


def test_a_data_set_that_draws_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Drawing\[i\] draws random numbers from torch.*transf"):
        SwiftLoader(Drawing, {"n": 8}, cache="1MB")
    with (
        SwiftLoader(Drawing, {"n": 8}, cache="1MB", worker_per_consumer=0) as loader,
        pytest.raises(ConfigError, match="draws"),
    ):
        list(loader)
    with pytest.raises(ConfigError, match="samples=False"):
        SwiftLoader(Stream, {"n": 8}, cache="1MB")


def test_data_sets_that_nobody_can_tell_apart_never_mix() -> None:
    options = {**OPTIONS, "cache": "1MB", "shuffle": False}
    with (
        SwiftLoader(Locked(8), start_method="fork", **options) as one,
        SwiftLoader(Locked(8, 100), start_method="fork", **options) as other,
    ):
        for _ in range(2):
            assert [row for batch in one for row in batch.tolist()] == [*range(8)]
            assert [row for batch in other for row in batch.tolist()] == [*range(100, 108)]
        figures = one.stats().cache
    assert figures is not None
    assert figures.hits == 8
    for more in ({"nb_consumer": 2}, {"cache": Cache("1MB", key="k")}):
        with pytest.raises(ConfigError, match=r"cache.*can't know the data set again.*lock"):
            SwiftLoader(Locked(8), start_method="fork", **{**options, **more}).start(0)


def test_a_data_set_keeps_by_hand_what_it_likes(path: Path) -> None:
    options = {**OPTIONS, "worker_per_consumer": 2, "validate": True}
    cache = Cache("1MB", samples=False)
    with SwiftLoader(ByHand, {"path": str(path)}, cache=cache, **options) as loader:
        path.unlink(missing_ok=True)  # of the trial
        got = epochs(loader, 2)
    rows = sorted(row[0] for batch in got[1] for row in batch["row"])
    assert rows == list(range(1000, 1000 + _N))
    assert got[0][0]["draw"] != got[1][0]["draw"]
    assert set(made(path).values()) == {1}
    assert current().get("key", lambda: 7) == 7  # without a loader


def test_calls_of_the_data_set_have_samples_of_their_own() -> None:
    with SwiftLoader(Sized, {"n": 12}, batch_size=4, worker_per_consumer=2, cache="1MB") as loader:
        before = epochs_of_told(loader)
        assert before == epochs_of_told(loader)
        loader.call_dataset("resize", 3)
        assert epochs_of_told(loader) == epochs_of_told(loader) != before


def epochs_of_told(loader: SwiftLoader) -> list[Any]:
    return [batch.tolist() for batch in loader]


def test_a_store_that_could_not_be_started_is_tried_again_in_the_next_epoch(
    path: Path, want: list[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with SwiftLoader(Counted, {"path": str(path)}, cache="1MB", **OPTIONS) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/nowhere/python")
            with pytest.warns(RuntimeWarning, match="there is no cache") as warned:
                got = epochs(loader, 1)
        assert len(warned) == 1
        got += epochs(loader, 2)
    assert got == want
    assert set(made(path).values()) == {2}


def test_a_store_that_does_not_answer_is_waited_for_once(
    path: Path, want: list[list[Any]], mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_ANSWER_WITHIN_S", 0.5)
    monkeypatch.setattr(client, "_FIGURES_WITHIN_S", 0.5)
    with SwiftLoader(Counted, {"path": str(path)}, cache="1MB", **OPTIONS) as loader:
        got = epochs(loader, 1)
        [store] = stores(mark)
        store.suspend()  # as one is whose disk hangs
        try:
            with pytest.warns(RuntimeWarning, match="the store does not answer") as warned:
                got += epochs(loader, 2)
            assert len(warned) == 1
            assert loader.stats().cache is not None
        finally:
            store.kill()
    assert got == want
    assert set(made(path).values()) == {3}


def test_killed_worker_and_killed_store_cost_no_sample(
    path: Path, want: list[list[Any]], mark: str
) -> None:
    """See `test_cache_kills` for many rounds, and for ranks that are killed."""
    rounds = 6
    choose = random.Random(rounds)
    options = {**OPTIONS, "worker_per_consumer": 2}
    options |= {"max_worker_restarts": 10**6, "max_deaths_per_batch": 10**6}
    done = 0
    with SwiftLoader(
        Counted, {"path": str(path), "slow_s": 0.002}, cache=_N * _SAMPLE_BYTES // 2, **options
    ) as loader:
        while done < rounds:
            loader.set_epoch(0)
            for epoch in range(3):
                for batch, right in zip(loader, want[epoch], strict=True):
                    assert plain(batch) == right
                    if done < rounds and choose.random() < 0.3:
                        done += _kill_one(loader, mark, choose)


def _kill_one(loader: SwiftLoader, mark: str, choose: random.Random) -> int:
    time.sleep(choose.random() * 0.01)
    victims = stores(mark) if choose.random() < 0.5 else []
    for victim in victims or workers_of(loader)[:1]:
        with suppress(psutil.NoSuchProcess):
            victim.kill()
            return True
    return False


def test_nothing_is_left_of_a_run_that_was_killed(tmp_path: Path, mark: str) -> None:
    from tests.process.scripts import assert_gone, family, running, wait_for

    script = """
with SwiftLoader(Dataset, {"n": 400}, batch_size=4, cache="50MB", start_method="fresh") as loader:
    for batch in loader:
        pass
    for batch in loader:
        print("running", flush=True)
        time.sleep(100)
"""
    with running(script, tmp_path) as process:
        wait_for(process, "running")
        whole = [*family(process.pid), *stores(mark)]
        assert stores(mark)
        process.kill()
        assert_gone(whole)
    assert not stores(mark)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_nothing_is_left_in_memory_when_all_are_killed_at_once(tmp_path: Path, mark: str) -> None:
    from tests.process.scripts import (
        assert_gone,
        assert_nothing_new_in_shm,
        family,
        running,
        wait_for,
    )

    script = """
with SwiftLoader(Dataset, {"n": 400}, batch_size=4, cache="50MB", start_method="fresh") as loader:
    for batch in loader:
        pass
    print("running", flush=True)
    time.sleep(100)
"""
    before = set(os.listdir("/dev/shm"))
    with running(script, tmp_path) as process:
        wait_for(process, "running")
        [store] = stores(mark)
        whole = [*family(process.pid), store]
        assert len(whole) > 2
        memory = {region for each in whole for region in _regions(each.pid)}
        assert memory
        for each in whole:  # all are stopped first, so nobody has the time to clean up
            each.suspend()
        for each in whole:
            with suppress(psutil.NoSuchProcess):  # the end of its parent has woken and ended it
                each.kill()
        process.wait(20)
        assert_gone(whole)
    assert_nothing_new_in_shm(before)
    held = {region for pid in psutil.pids() for region in _regions(pid)}
    assert not memory & held  # the system has freed what nobody maps


def _regions(pid: int) -> set[str]:
    """The inodes of a process's shared memory of ours."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line.split()[4] for line in lines if "memfd:swift_loader:cache" in line}


def test_a_shared_loader_has_a_cache_too(path: Path, tmp_path: Path) -> None:
    from swift_loader.sharing import TensorConsumer, TensorProducer

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = str(sock.getsockname()[1])
    options = {**OPTIONS, "worker_per_consumer": 2}
    with SwiftLoader(Counted, {"path": str(tmp_path / "plain")}, **OPTIONS) as loader:
        want = epochs(loader, 2)
    with (
        SwiftLoader(Counted, {"path": str(path)}, cache="1MB", **options) as loader,
        TensorProducer(loader, address) as producer,
    ):
        got: list[list[Any]] = []
        failed: list[BaseException] = []

        def consume() -> None:
            try:
                with TensorConsumer(address) as consumer:
                    got.extend([plain(batch) for batch in consumer] for _ in range(2))
            except BaseException as error:  # noqa: BLE001 - the test raises it
                failed.append(error)

        thread = threading.Thread(target=consume)
        thread.start()
        for _ in range(2):
            for _ in producer:
                pass
        producer.join()
        thread.join(60)
        figures = loader.stats().cache
    assert not failed
    assert got == want
    assert set(made(path).values()) == {1}
    assert figures is not None
    assert figures.misses == _N
    assert figures.hits >= _N  # the next epoch is begun ahead


def test_a_rank_that_is_killed_leaves_the_store_to_the_others(
    path: Path, tmp_path: Path, mark: str
) -> None:
    from tests.process.scripts import running, wait_for

    script = f"""
import sys; sys.path.insert(0, {os.getcwd()!r})
from swift_loader.cache import Cache
from tests.process.test_cache import Counted
with SwiftLoader(
    Counted, {{"path": {str(path)!r}, "slow_s": 0.002}}, batch_size=7, shuffle=True, seed=4,
    validate=False, start_method="fresh", cache=Cache("1MB", key={mark!r}),
) as loader:
    for k, batch in enumerate(loader):
        if k == 2:
            print("running", flush=True)
            time.sleep(100)
"""
    options = {**OPTIONS, "worker_per_consumer": 1, "cache": Cache("1MB", key=mark)}
    kwargs = {"path": str(path), "slow_s": 0.002}
    with running(script, tmp_path) as process:
        wait_for(process, "running")
        with SwiftLoader(Counted, kwargs, **options) as loader:
            iterator = iter(loader)
            batches = [plain(next(iterator))]
            process.kill()
            batches += [plain(batch) for batch in iterator]
    with SwiftLoader(Counted, {"path": str(tmp_path / "plain")}, **OPTIONS) as loader:
        assert batches == [plain(batch) for batch in loader]
    assert sum(made(path).values()) <= _N + 7  # what the killed worker was at


# ---- files


def test_files_serve_the_next_run_and_no_other_data_set(path: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    options = {**OPTIONS, "worker_per_consumer": 1}
    runs = []
    for _ in range(2):
        cache = Cache("1MB", disk=disk, key="k")
        with SwiftLoader(Counted, {"path": str(path)}, cache=cache, **options) as loader:
            runs.append(epochs(loader, 2))
            figures = loader.stats().cache
    assert runs[0] == runs[1]
    assert set(made(path).values()) == {1}
    assert figures is not None
    assert figures.disk_hits >= _N
    assert figures.misses == 0
    [folder] = disk.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in folder.iterdir()} == {0o600}
    other = {"path": str(path), "n": _N - 1}
    with SwiftLoader(Counted, other, cache=Cache(disk=disk, key="k"), **options) as loader:
        epochs(loader, 1)
    assert len(list(disk.iterdir())) == 2
    assert set(made(path).values()) == {1, 2}


class Limited(Counted):
    """Its process may write files of 200 kB at most. What it warns of goes into a file."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        warnings.showwarning = self._note

    def _note(self, message: Warning | str, *about: Any) -> None:
        with open(f"{self.path}-warned", "a") as file:
            file.write(f"{message}\n")

    def __getitem__(self, i: int) -> dict[str, Any]:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        return super().__getitem__(i)


def test_a_full_disk_costs_the_cache_and_not_the_run(
    path: Path, tmp_path: Path, want: list[list[Any]]
) -> None:
    cache = Cache(disk=tmp_path / "disk")
    options = {**OPTIONS, "worker_per_consumer": 2}
    for _ in range(2):
        with SwiftLoader(Limited, {"path": str(path)}, cache=cache, **options) as loader:
            assert epochs(loader) == want
    warned = Path(f"{path}-warned").read_text()
    assert warned.count("can't be written any more") == 1  # the second run has a new file
    times = made(path).values()
    assert 10 < sum(each == 1 for each in times) < 50  # as many as there was room for


def test_files_that_are_open_to_others_are_not_read(
    path: Path, tmp_path: Path, want: list[list[Any]]
) -> None:
    disk = tmp_path / "disk"
    options = {**OPTIONS, "worker_per_consumer": 1, "cache": Cache(disk=disk)}
    with SwiftLoader(Counted, {"path": str(path)}, **options) as loader:
        assert epochs(loader) == want
    [folder] = disk.iterdir()
    folder.chmod(0o755)
    with SwiftLoader(Counted, {"path": str(path)}, **options) as loader:
        with pytest.warns(RuntimeWarning, match=r"the cache's files.*open to other users"):
            loader.start()
        assert epochs(loader) == want
    assert min(made(path).values()) >= 1 + 3


_as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


@_as_root
def test_a_store_of_another_user_is_not_asked() -> None:
    from swift_loader.cache.files import ForeignError
    from swift_loader.cache.starting import connect_or_start

    address = f"swift_loader-cache-test-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        os.seteuid(65534)
        try:
            listener.bind(f"\0{address}")
            listener.listen(1)
        finally:
            os.seteuid(0)
        with pytest.raises(ForeignError):
            connect_or_start(address)


@_as_root
def test_a_store_hangs_up_on_another_user() -> None:
    from swift_loader.cache.starting import connect_or_start

    address = f"swift_loader-cache-test-{secrets.token_hex(4)}"
    channel = connect_or_start(address)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            os.seteuid(65534)
            try:
                other.connect(f"\0{address}")
            finally:
                os.seteuid(0)
            other.settimeout(60)
            assert other.recv(1) == b""
    finally:
        channel.close()


def test_samples_that_all_have_room_are_read_without_asking_the_store(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_ANSWER_WITHIN_S", 1.0)  # a question would end by a warning
    n, before = 40, 3
    with (
        warnings.catch_warnings(),
        SwiftLoader(
            datasets.Numbers, {"n": n}, **{**OPTIONS, "prefetch_epochs": 0}, cache="10MB"
        ) as loader,
    ):
        warnings.simplefilter("error")
        want = [[plain_pair(batch) for batch in loader] for _ in range(before)]
        [store] = stores(mark)
        store.suspend()
        try:
            got = [plain_pair(batch) for batch in loader]
        finally:
            store.resume()
        assert rows_of(got) == rows_of(want[0]) == [[float(i)] * 4 for i in range(n)]
        figures = loader.stats().cache
        assert figures is not None
        assert (figures.misses, figures.hits) == (n, before * n)


def plain_pair(batch: Any) -> Any:
    return tuple(part.tolist() for part in batch)


def rows_of(batches: list[Any]) -> list[list[float]]:
    return sorted(row for rows, _ in batches for row in rows)
