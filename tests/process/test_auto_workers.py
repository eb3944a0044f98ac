"""`worker_per_consumer="auto"`, affinity and traces: what is seen and done about workers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils.data import IterableDataset, get_worker_info

from swift_loader import ConfigError, SwiftLoader
from swift_loader.pipeline.roster import Roster, WorkerState
from swift_loader.pipeline.scaling import Scaling
from tests import datasets
from tests.conformance import indices_of, plan_of
from tests.process.test_crashes import workers_of

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs to grow into")
def test_waiting_loop_gets_more_workers_and_the_same_batches(tmp_path: Path) -> None:
    log = tmp_path / "bench.jsonl"
    with SwiftLoader(
        datasets.Slow,
        {"n": 4000, "delay_s": 0.004},
        batch_size=4,
        worker_per_consumer="auto",
        shuffle=True,
        benchmark_file=log,
    ) as loader:
        plan = plan_of(loader)
        deadline_s = time.monotonic() + 30
        for k, batch in enumerate(loader):
            assert indices_of(batch) == plan.batch(0, 0, k).tolist()
            if len(workers_of(loader)) == 2 or time.monotonic() > deadline_s:
                break
        assert len(workers_of(loader)) == 2
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert any("waited for data" in json.dumps(event) for event in events)


def test_idle_workers_are_taken_away_and_nothing_is_lost() -> None:
    with SwiftLoader(
        datasets.Numbers, {"n": 100_000}, batch_size=2, worker_per_consumer="auto"
    ) as loader:
        iterator = iter(loader)
        got = indices_of(next(iterator))
        pipeline = loader._engine.pipeline
        books = pipeline._books  # as if this machine had three CPUs
        hands = pipeline._hands
        hands._launchers = dict.fromkeys(range(3), hands._launchers[0])
        books.roster = Roster(range(3), (), auto=True)
        books.roster.starts(0, 0.0)
        books.roster.become(0, WorkerState.UP)
        pipeline._do(lambda: [books._launch(worker, 0.0) for worker in (1, 2)])
        deadline_s = time.monotonic() + 60
        while len(workers_of(loader)) > 1 and time.monotonic() < deadline_s:
            got += indices_of(next(iterator))
            time.sleep(0.002)  # a loop that computes: workers are idle
        assert len(workers_of(loader)) == 1
        for _ in range(50):
            got += indices_of(next(iterator))
        assert got == list(range(len(got)))


def test_scaling_waits_longer_after_a_worker_was_missed() -> None:
    scaling = Scaling(4)
    now_s = 0.0

    def run(seconds: int, wait_share: float, busy: float, workers: int) -> list[int]:
        nonlocal now_s
        steps = []
        for _ in range(seconds * 10):
            now_s += 0.1
            scaling.made(busy * 0.1)
            steps.append(scaling.delivered(wait_share * 0.1, now_s, workers))
        return [step for step in steps if step]

    assert 1 in run(3, 0.5, 1.0, 1)
    assert -1 in run(10, 0.0, 0.2, 3)
    assert 1 in run(3, 0.5, 1.0, 2)
    assert -1 not in run(8, 0.0, 0.2, 3)


class CpusOfEachWorker(IterableDataset[list[int]]):
    """A stream, as every worker has a part of that."""

    def __iter__(self) -> Iterator[list[int]]:
        info = get_worker_info()
        assert info is not None
        assert info.id < info.num_workers  # it asks, and so splits itself
        yield sorted(os.sched_getaffinity(0))


def test_workers_run_on_the_cpus_that_they_are_given() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    affinity = [[cpus[0]], [cpus[-1]]]
    with SwiftLoader(
        CpusOfEachWorker, batch_size=None, worker_per_consumer=2, worker_affinity=affinity
    ) as loader:
        assert list(loader) == affinity
    with pytest.raises(ConfigError, match="worker_affinity"):
        SwiftLoader(datasets.Numbers, {"n": 4}, worker_affinity=[100_000])


@pytest.mark.parametrize("staged", [True, False])
def test_trace_has_every_stage_of_every_batch(staged: bool, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with SwiftLoader(
        datasets.Numbers, {"n": 40}, batch_size=4, worker_per_consumer=2, trace_file=path
    ) as loader:
        loader.start(0, to_device=(lambda batch, device: batch) if staged else None)
        list(loader)
    events = json.loads(path.read_text())
    spans = [event["name"] for event in events if event["ph"] == "X"]
    stages = ["fetch", "collate", "encode", "decode", "wait", *(["to_device"] if staged else [])]
    assert {stage: spans.count(stage) for stage in set(spans)} == dict.fromkeys(stages, 10)
    by_batch: dict[int, dict[str, float]] = {}
    for event in events:
        if event["ph"] == "X":
            by_batch.setdefault(event["args"]["batch"], {})[event["name"]] = event["ts"]
    for times in by_batch.values():
        assert times["fetch"] <= times["collate"] <= times["encode"] <= times["decode"]
