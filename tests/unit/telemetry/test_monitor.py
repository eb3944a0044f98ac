"""The benchmark file: its lines, and what happens when it can't be written."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import pytest

from swift_loader.errors import ConfigError
from swift_loader.report.runs import read_runs, waiting
from swift_loader.telemetry.log import LogConfig, consumer_role, open_log
from swift_loader.telemetry.metrics import BatchTimes, Meter
from swift_loader.telemetry.monitor import open_benchmark
from swift_loader.telemetry.stats import Totals


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def add(meter, at_s, **more):
    zero = BatchTimes(0, 0, 0, 32, 1000, 0.01, 0.0, 0.0, 0.0, 0.0, 0.001, 2, at_s)
    meter.add(zero._replace(**more))


def opened(meter, path, **more):
    facts = {"plan": {}, "options": {}, "logger": None, "interval_s": 1.0, **more}
    return open_benchmark(meter, path=path, **facts)


def test_a_file_has_header_intervals_events_and_summary(tmp_path, write_run):
    lines = lines_of(write_run(tmp_path / "run.jsonl"))
    kinds = [line["kind"] for line in lines]
    assert kinds[0] == "header"
    assert kinds[-1] == "summary"
    assert kinds.count("header") == kinds.count("summary") == 1
    assert len({line["run"] for line in lines}) == 1
    times = [line["t_s"] for line in lines]
    assert times == sorted(times)
    header, intervals = lines[0], [line for line in lines if line["kind"] == "interval"]
    assert header["schema"] == 1
    assert header["host"]["pid"] == os.getpid()
    assert header["plan"]["batch_size"] == 32
    # Intervals follow each other without a gap, and nothing is counted twice or left out.
    assert intervals[0]["from_s"] == 0
    for before, after in pairwise(intervals):
        assert after["from_s"] == before["t_s"]
    stats = lines[-1]["stats"]
    for name in ("batches", "samples", "nbytes"):
        assert sum(line[name] for line in intervals) == stats[name]
    assert sum(line["elapsed_s"] for line in intervals) == pytest.approx(
        stats["elapsed_s"], abs=1e-3
    )
    assert set(Totals._fields) | {"loop_s"} <= set(intervals[0])
    (worker, _) = intervals[-1]["workers"]
    assert set(worker) == {"worker", "pid", "batches", "cpu", "cpu_wait", "rss_bytes"}
    events = [line["event"] for line in lines if line["kind"] == "event"]
    assert events == [
        *("worker_start", "worker_start", "epoch_begin", "epoch_end"),
        *("restart", "skipped", "warning", "epoch_begin", "epoch_end"),
    ]


def test_without_a_file_the_log_gets_the_lines(tmp_path):
    with closing(open_log(LogConfig(path=f"{tmp_path}/"), consumer_role(0))) as log:
        opened(Meter(0), None, logger=log.logger).close()
    lines = (tmp_path / "consumer-0.log").read_text().splitlines()
    kinds = [json.loads(line.partition("| benchmark ")[2])["kind"] for line in lines]
    assert kinds == ["header", "interval", "summary"]


def test_consumers_and_later_runs_share_a_file(tmp_path):
    path = tmp_path / "run.jsonl"
    begin = threading.Barrier(3)

    def consumer(number):
        meter = Meter(number)
        with closing(opened(meter, path, options={"note": "x" * 20_000}, interval_s=0.0)):
            begin.wait()
            meter.epoch_begins(0, time.perf_counter())
            for _ in range(100):
                add(meter, time.perf_counter())

    threads = [threading.Thread(target=consumer, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = lines_of(path)  # every line is whole
    assert len({line["run"] for line in lines}) == 3
    assert sorted(line["consumer"] for line in lines if line["kind"] == "header") == [0, 1, 2]
    assert sum(line["batches"] for line in lines if line["kind"] == "interval") == 300


def test_a_pause_between_epochs_gets_a_line_of_its_own(tmp_path):
    meter = Meter(0)
    path = tmp_path / "run.jsonl"
    with closing(opened(meter, path, interval_s=1.0)) as writer:
        start_s = writer._start_s
        for begin in (0.0, 60.0):
            meter.epoch_begins(0, start_s + begin)
            for i in range(1, 6):
                add(meter, start_s + begin + 0.1 * i)
            meter.epoch_ends(start_s + begin + 0.5)
    spans = [
        (line["from_s"], line["t_s"], line["batches"])
        for line in lines_of(path)
        if line["kind"] == "interval"
    ]
    assert spans[:2] == [(0.0, 0.5, 5), (0.5, 60.0, 0)]


def test_events_of_a_kind_are_limited_but_counted(tmp_path):
    meter = Meter(0)
    path = tmp_path / "run.jsonl"
    with closing(opened(meter, path)):
        for index in range(500):
            meter.skipped(index)
    lines = lines_of(path)
    assert sum(line["kind"] == "event" for line in lines) == 20
    (interval,) = (line for line in lines if line["kind"] == "interval")
    assert interval["events"] == {"skipped": 500}
    assert lines[-1]["stats"]["nb_skipped"] == 500


def test_what_is_no_json_is_written_as_text(tmp_path):
    class Odd:
        def __repr__(self):
            return "odd" * 1000

    with closing(opened(Meter(0), tmp_path / "run.jsonl", options={"f": len, "odd": Odd()})):
        pass
    options = lines_of(tmp_path / "run.jsonl")[0]["options"]
    assert "built-in function len" in options["f"]
    assert len(options["odd"]) == 200


def test_there_is_no_thread_and_no_descriptor_left(tmp_path):
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        writer = opened(Meter(0), tmp_path / "run.jsonl")
        assert threading.active_count() == threads
        writer.close()
        writer.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_warns_once_and_training_goes_on():
    meter = Meter(0)
    with pytest.warns(RuntimeWarning, match="benchmark_file: nothing more is written") as caught:
        writer = opened(meter, "/dev/full")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        meter.epoch_begins(0, time.perf_counter())
        add(meter, time.perf_counter() + 100)
        writer.close()
    assert meter.snapshot().batches == 1


def test_a_file_that_can_not_be_opened_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"benchmark_file='.*/none/run.jsonl'"):
        opened(Meter(0), str(tmp_path / "none" / "run.jsonl"))
    with pytest.raises(ConfigError, match="benchmark_file"):
        opened(Meter(0), None)


def test_a_run_of_three_days_stays_readable_and_its_file_bounded(tmp_path):
    path = tmp_path / "long.jsonl"
    meter = Meter(0)
    begin_s = time.perf_counter()
    with closing(open_benchmark(meter, path=path, logger=None, plan={}, options={})):
        for worker in range(8):
            meter.worker_started(worker, None)
        meter.epoch_begins(0, begin_s)
        for k in range(3 * 86_400 // 30):
            at_s = begin_s + 30.0 * k
            late = 10.0 if 4000 <= k < 4200 else 0.0  # waiting on the second day, for 100 min
            meter.add(BatchTimes(k % 8, 0, k, 32, 1000, 0.1, 0.0, 0.0, 0.0, 0.0, late, 3, at_s))
            meter.skipped(k)
        meter.epoch_ends(begin_s + 3 * 86_400)
    assert path.stat().st_size < 20_000_000
    (run,), passed_over = read_runs([path])
    assert passed_over == 0
    assert run.totals.batches == 8640
    assert run.event_counts["skipped"] == 8640
    assert sum(event.kind == "skipped" for event in run.events) == 2000
    # The last line is of the time that has really passed.
    (stretch,) = waiting(replace(run, intervals=run.intervals[:-1]))
    assert stretch.from_s == pytest.approx(120_000, abs=3000)
    assert stretch.t_s == pytest.approx(126_000, abs=3000)
    assert stretch.waited_s == pytest.approx(2000, rel=0.1)
