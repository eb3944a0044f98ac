"""The names of RPCDataloader: what a script written for it does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("zmq")

from swift_loader import WorkerDiedError, WorkerTimeoutError
from swift_loader.remote.keys import Keys
from swift_loader.rpcdataloader import RPCDataloader, RPCDataset, rpc_async, set_random_seeds
from swift_loader.rpcdataloader.rpc import close_hosts
from tests import datasets
from tests.conformance import indices_of
from tests.process.scripts import ROOT, environment


class Counter:
    """A thing to keep with a worker."""

    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, step: int) -> int:
        self.value += step
        return self.value


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    key = tmp_path_factory.mktemp("keys") / "key"
    Keys.generate().write(key)
    workers = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "swift_loader.rpcdataloader.launch"),
                *("--host", "127.0.0.1", "--port", "0", "--parallel", "1", "--timeout", "60"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**environment(), "SWIFT_LOADER_KEY": str(key)},
        )
        for _ in range(2)
    ]
    before = os.environ.get("SWIFT_LOADER_KEY")
    os.environ["SWIFT_LOADER_KEY"] = str(key)
    yield [worker.stdout.readline().strip() for worker in workers if worker.stdout is not None]
    close_hosts()
    if before is None:
        del os.environ["SWIFT_LOADER_KEY"]
    for worker in workers:
        worker.terminate()
    for worker in workers:
        assert worker.wait(20) == 0
        assert worker.stdout is not None
        worker.stdout.close()


def test_call_gives_a_future_of_its_result(hosts: list[str]) -> None:
    futures = [rpc_async(host, pow, (2, k)) for k in range(50) for host in hosts]
    assert [future.wait() for future in futures] == [2**k for k in range(50) for _ in hosts]
    assert isinstance(futures[0], torch.futures.Future)
    assert rpc_async(hosts[0], dict, kwargs={"a": 1}).wait() == {"a": 1}
    tensor = torch.arange(3_000_00).reshape(3, -1)
    assert torch.equal(rpc_async(hosts[0], torch.mul, (tensor, 2)).wait(), tensor * 2)


def test_function_that_raises_raises_here(hosts: list[str]) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        rpc_async(hosts[0], divmod, (1, 0)).wait()
    assert "In the worker" in str(caught.value.__cause__)
    assert rpc_async(hosts[0], divmod, (7, 2)).wait() == (3, 1)


def test_reference_stays_with_the_worker(hosts: list[str]) -> None:
    reference = rpc_async(hosts[0], Counter, (5,), rref=True).wait()
    added = [rpc_async(hosts[0], Counter.add, (reference, 2)).wait() for _ in range(3)]
    assert added == [7, 9, 11]
    with pytest.raises(ZeroDivisionError):
        rpc_async(hosts[0], divmod, (1, 0), rref=True).wait()


def test_call_that_ends_its_worker_or_takes_too_long_fails_alone(hosts: list[str]) -> None:
    import time

    with pytest.raises(WorkerDiedError):
        rpc_async(hosts[0], os._exit, (3,)).wait()
    assert rpc_async(hosts[0], abs, (-1,)).wait() == 1
    slow = rpc_async(hosts[1], time.sleep, (5,), timeout=1.0)
    with pytest.raises(WorkerTimeoutError, match="timeout=1"):
        slow.wait()


def test_host_where_nobody_is_fails_within_its_timeout() -> None:
    with pytest.raises((WorkerDiedError, WorkerTimeoutError), match=r"127\.0\.0\.1:1"):
        rpc_async("127.0.0.1:1", abs, (1,), timeout=2.0).wait()


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_come_in_the_samplers_order(drop_last: bool, hosts: list[str]) -> None:
    dataset = RPCDataset(hosts, datasets.Numbers, n=50)
    assert len(dataset) == 50
    loader = RPCDataloader(dataset, batch_size=8, drop_last=drop_last, timeout=60)
    for _ in range(2):
        got = [indices_of(batch) for batch in loader]
        assert len(got) == len(loader) == (6 if drop_last else 7)
        assert [i for batch in got for i in batch] == list(range(48 if drop_last else 50))
    loader.close()


def test_shuffle_sampler_and_batch_sampler_are_followed(hosts: list[str]) -> None:
    dataset = RPCDataset(hosts, datasets.Numbers, 40)
    shuffled = RPCDataloader(dataset, 4, shuffle=True, prefetch_factor=3)
    first, second = ([i for b in shuffled for i in indices_of(b)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second
    shuffled.close()
    reverse = RPCDataloader(dataset, 3, sampler=range(39, -1, -1), collate_fn=list)
    assert [int(i) for batch in reverse for _, i in batch] == list(range(39, -1, -1))
    reverse.close()
    odd = RPCDataloader(dataset, batch_sampler=[[1, 2, 3], [7], [5, 6]])
    assert [indices_of(batch) for batch in odd] == [[1, 2, 3], [7], [5, 6]]
    odd.close()
    single = RPCDataloader(dataset, batch_size=None, sampler=[4, 2])
    assert [int(i) for _, i in single] == [4, 2]
    single.close()


def test_dataset_that_can_not_be_built_raises_at_once(hosts: list[str], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="missing"):
        RPCDataset(hosts, datasets.Numbers)


def test_seeds_differ_between_workers_and_repeat() -> None:
    drawn = []
    for worker in (0, 1, 0):
        set_random_seeds(1234, worker)
        drawn.append(torch.rand(1).item())
    assert drawn[0] == drawn[2] != drawn[1]
