"""The trace file: valid for its viewers, whole or cut off, bounded."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from contextlib import closing

import pytest

from swift_loader.errors import ConfigError
from swift_loader.telemetry.metrics import BatchTimes
from swift_loader.telemetry.trace import (
    READER,
    TRAINING,
    TraceWriter,
    open_trace,
    worker_track,
)


def a_batch(at_s: float, worker: int = 1) -> BatchTimes:
    return BatchTimes(worker, 2, 7, 32, 1000, 0.3, 0.2, 0.1, 0.05, 0.04, 0.02, 3, at_s)


def test_a_batch_is_laid_on_its_tracks(tmp_path):
    path = tmp_path / "trace.json"
    writer = open_trace(path, 0)
    at_s = time.perf_counter() + 10
    with closing(writer):
        writer.batch(
            a_batch(at_s),
            made_at_s=at_s - 0.5,
            decoded_at_s=at_s - 0.4,
            on_device_at_s=at_s - 0.1,
        )
    events = json.loads(path.read_text())
    spans = {event["name"]: event for event in events if event["ph"] == "X"}
    assert set(spans) == {"fetch", "collate", "encode", "decode", "to_device", "wait"}
    zero = spans["wait"]["ts"] + spans["wait"]["dur"]  # at_s, in microseconds
    for name, end_s, duration_s in (
        ("fetch", -0.8, 0.3),
        ("collate", -0.6, 0.2),
        ("encode", -0.5, 0.1),
        ("decode", -0.4, 0.05),
        ("to_device", -0.1, 0.04),
        ("wait", 0.0, 0.02),
    ):
        span = spans[name]
        assert span["dur"] == pytest.approx(duration_s * 1e6)
        assert span["ts"] + span["dur"] - zero == pytest.approx(end_s * 1e6, abs=1)
        assert span["args"] == {"epoch": 2, "batch": 7}
    names = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    assert names[TRAINING] == "training loop"
    assert names[READER] == "reader"
    assert names[worker_track(1)] == "worker 1"
    assert {span["tid"] for span in spans.values()} <= set(names)


def test_a_worker_with_another_clock_is_laid_before_decoding(tmp_path):
    with closing(open_trace(tmp_path / "t.json", 0)) as writer:
        writer.batch(a_batch(100.0), made_at_s=None, decoded_at_s=99.0)
    events = json.loads((tmp_path / "t.json").read_text())
    spans = {event["name"]: event for event in events if event["ph"] == "X"}
    assert set(spans) == {"fetch", "collate", "encode", "decode", "wait"}
    assert spans["encode"]["ts"] + spans["encode"]["dur"] == pytest.approx(spans["decode"]["ts"])


def test_what_a_killed_process_leaves_is_an_array_without_its_end(tmp_path):
    path = tmp_path / "t.json"
    writer = open_trace(path, 0)
    for i in range(1000):
        writer.batch(a_batch(float(i)), made_at_s=i - 1.0, decoded_at_s=i - 0.5)
    text = path.read_text()  # nothing was closed
    events = json.loads(text.rstrip().rstrip(",") + "]")
    assert 5000 - 512 <= sum(event["ph"] == "X" for event in events) <= 5000
    writer.close()


def test_several_threads_write_whole_events(tmp_path):
    path = tmp_path / "t.json"
    with closing(open_trace(path, 0)) as writer:

        def work(worker: int) -> None:
            for i in range(1000):
                writer.span(worker_track(worker), "fetch", float(i), 0.5, {"worker": worker})

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = json.loads(path.read_text())
    assert sum(event["ph"] == "X" for event in events) == 4000


def test_the_file_is_bounded(tmp_path):
    path = tmp_path / "t.json"
    with closing(TraceWriter(str(path), 0, max_events=100)) as writer:
        for i in range(1000):
            writer.span(TRAINING, "wait", float(i), 0.5, {})
    events = json.loads(path.read_text())
    assert len(events) < 110
    assert [event["name"] for event in events].count("the trace ends here: it is full") == 1


def test_each_consumer_has_its_file_and_an_older_one_is_replaced(tmp_path):
    for _ in range(2):
        for consumer in range(2):
            open_trace(tmp_path / "trace.json", consumer, nb_consumer=2).close()
    assert sorted(os.listdir(tmp_path)) == ["trace.consumer-0.json", "trace.consumer-1.json"]
    for path in tmp_path.iterdir():
        assert isinstance(json.loads(path.read_text()), list)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_warns_once_and_training_goes_on():
    with pytest.warns(RuntimeWarning, match="trace_file: nothing more is written") as caught:
        writer = open_trace("/dev/full", 0)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(2000):
            writer.span(TRAINING, "wait", float(i), 0.5, {})
        writer.close()
        writer.close()


def test_a_file_that_can_not_be_opened_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"trace_file='.*/none/t.json'"):
        open_trace(tmp_path / "none" / "t.json", 0)
