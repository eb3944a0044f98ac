"""The conformance suite over Ray actors, and actors and nodes that go away."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swift_loader import ConfigError, SwiftLoader, WorkerDiedError, WorkerTimeoutError
from swift_loader.remote import RayWorkers
from tests import datasets
from tests.conformance import Conformance, indices_of, plan_of
from tests.process.scripts import ROOT

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.timeout(240)
ENV = {"env_vars": {"PYTHONPATH": str(ROOT)}}
QUIET = {"include_dashboard": False, "log_to_driver": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=8, object_store_memory=400 << 20, runtime_env=ENV, **QUIET)
    yield
    ray.shutdown()


def workers(count: int = 2) -> RayWorkers:
    return RayWorkers(count, num_cpus=1)


@pytest.mark.soak  # each worker is a process of Ray's, which takes seconds to start
@pytest.mark.usefixtures("cluster")
class TestRayWorkers(Conformance):
    own_machine = False  # environment and CPUs are Ray's affair

    def loader(self, dataset: Any, kwargs: dict[str, Any], **options: Any) -> SwiftLoader:
        count = options.pop("worker_per_consumer", 1)
        return SwiftLoader(
            dataset, kwargs, **options, worker_per_consumer=0, remote_workers=workers(count)
        )


@pytest.mark.usefixtures("cluster")
def test_worker_that_dies_in_getitem_costs_no_sample(tmp_path: Path) -> None:
    with SwiftLoader(
        datasets.Dies,
        {"n": 60, "at": 23, "how": "exit", "folder": tmp_path},
        batch_size=4,
        data_queue_size=4,  # so that the next epoch's batch of it is not made meanwhile
        validate=False,
        worker_per_consumer=0,
        remote_workers=workers(),
    ) as loader:
        assert [i for batch in loader for i in indices_of(batch)] == list(range(60))
        assert loader.stats().restarts == 1


@pytest.mark.soak
@pytest.mark.usefixtures("cluster")
def test_batch_that_kills_two_workers_is_an_error_that_names_it(tmp_path: Path) -> None:
    with SwiftLoader(
        datasets.Dies,
        {"n": 40, "at": 13, "how": "exit", "folder": tmp_path, "always": True},
        batch_size=4,
        data_queue_size=4,  # so that only this epoch's batch of sample 13 is ever made
        validate=False,
        worker_per_consumer=0,
        remote_workers=workers(),
    ) as loader:
        with pytest.raises(WorkerDiedError) as caught:
            list(loader)
        assert "batch 3 of epoch 0" in str(caught.value)


@pytest.mark.soak
@pytest.mark.usefixtures("cluster")
def test_timeout_shows_where_the_worker_hangs(tmp_path: Path) -> None:
    with SwiftLoader(
        datasets.Hangs,
        {"n": 20, "at": 9, "folder": tmp_path, "always": True},
        batch_size=2,
        validate=False,
        timeout=3.0,
        worker_per_consumer=0,
        remote_workers=workers(1),
    ) as loader:
        with pytest.raises(WorkerTimeoutError) as caught:
            list(loader)
        assert "in __getitem__" in str(caught.value)


@pytest.mark.soak
@pytest.mark.usefixtures("cluster")
def test_batches_may_be_changed_and_outlive_the_loader() -> None:
    with SwiftLoader(
        datasets.Numbers, {"n": 40}, batch_size=4, worker_per_consumer=0, remote_workers=workers()
    ) as loader:
        kept = []
        for rows, indices in loader:
            rows += 1
            kept.append((rows - 1, indices))
    assert [i for batch in kept for i in indices_of(batch)] == list(range(40))


@pytest.mark.usefixtures("cluster")
def test_dataset_that_can_not_be_built_is_an_error_at_start() -> None:
    with (
        SwiftLoader(
            datasets.BrokenConstructor,
            {"how": "raise", "pid": os.getpid()},
            worker_per_consumer=0,
            remote_workers=workers(1),
            validate=False,
        ) as loader,
        pytest.raises(FileNotFoundError, match="nowhere") as caught,
    ):
        loader.start(0)
    assert "Ray worker" in str(caught.value.__cause__)


@pytest.mark.usefixtures("cluster")
def test_orders_that_are_recalled_cost_no_worker() -> None:
    with SwiftLoader(
        datasets.Numbers, {"n": 60}, batch_size=3, worker_per_consumer=0, remote_workers=workers()
    ) as loader:
        for _ in range(8):
            assert indices_of(next(iter(loader))) == [0, 1, 2]
        assert loader.stats().restarts == 0


def test_number_of_workers_is_checked() -> None:
    with pytest.raises(ConfigError, match="num_workers"):
        RayWorkers(0)


class OnNodes(datasets.Slow):
    """A sample says besides on which node it was made."""

    def __getitem__(self, i: int) -> Any:
        return super().__getitem__(i), ray.get_runtime_context().get_node_id()


@pytest.mark.soak
def test_node_that_is_removed_in_mid_epoch_costs_no_batch() -> None:
    from ray.cluster_utils import Cluster

    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        first, second = cluster.add_node(num_cpus=2), cluster.add_node(num_cpus=2)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, runtime_env=ENV, log_to_driver=False)
        with SwiftLoader(
            OnNodes,
            {"n": 300, "delay_s": 0.01},
            batch_size=2,
            shuffle=True,
            validate=False,  # nothing is made here
            worker_per_consumer=0,
            # one more than one node has CPUs for: afterwards it waits for a place
            remote_workers=RayWorkers(3, scheduling_strategy="SPREAD"),
        ) as loader:
            loader.start(0)
            plan = plan_of(loader)

            def nodes_of_epoch(epoch: int, remove_at: int | None = None) -> set[str]:
                seen, nodes = [], set[str]()
                for k, (numbers, made_on) in enumerate(loader):
                    seen.append(indices_of(numbers))
                    nodes.update(made_on)
                    if k == remove_at:
                        cluster.remove_node(first, allow_graceful=False)
                assert seen == [plan.batch(epoch, 0, k).tolist() for k in range(150)]
                return nodes

            epoch = 0
            while len(nodes_of_epoch(epoch)) < 2:  # actors of one node may be up first
                epoch += 1
            assert nodes_of_epoch(epoch + 1, remove_at=20) == {first.node_id, second.node_id}
            assert nodes_of_epoch(epoch + 2) == {second.node_id}
            assert loader.stats().restarts >= 1
    finally:
        ray.shutdown()
        cluster.shutdown()
