"""What `Meter` counts and what `LoaderStats` tells."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_loader.telemetry.distribution import Distribution, add_rows
from swift_loader.telemetry.metrics import BatchTimes, Meter
from swift_loader.telemetry.stats import STAGES, Totals, shares
from swift_loader.telemetry.units import format_bytes, format_seconds
from swift_loader.telemetry.verdict import Evidence, judge


def batch(at_s: float, wait_s: float = 0.0, **more: float) -> BatchTimes:
    zero = BatchTimes(0, 0, 0, 32, 1000, 0.0, 0.0, 0.0, 0.0, 0.0, wait_s, 0, at_s)
    return zero._replace(**more)


# As clocks tell them: in less than that, a rate would be infinite.
seconds = st.integers(0, 10**10).map(lambda nanoseconds: nanoseconds / 1e9)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 64), seconds, seconds, seconds, st.integers(0, 9)
        )
    )
)
def test_every_batch_is_counted_once(rows):
    meter = Meter(0)
    meter.epoch_begins(0, 0.0)
    at_s = 0.0
    for worker, nb_samples, fetch_s, wait_s, loop_s, depth in rows:
        at_s += wait_s + loop_s
        meter.add(
            batch(
                at_s,
                wait_s,
                worker=worker,
                nb_samples=nb_samples,
                fetch_s=fetch_s,
                queue_depth=depth,
            )
        )
    stats = meter.snapshot()
    assert stats.batches == len(rows)
    assert stats.samples == sum(row[1] for row in rows)
    assert math.isclose(stats.stages["fetch"].total_s, sum(row[2] for row in rows), abs_tol=1e-9)
    assert stats.queue_depth_max == max((row[5] for row in rows), default=0)
    assert sum(row.batches for row in stats.workers) == len(rows)
    assert {row.worker for row in stats.workers} == {row[0] for row in rows}
    assert 0 <= stats.wait_share <= 1 + 1e-9
    assert stats.startup_s + stats.elapsed_s == pytest.approx(at_s)
    json.dumps(stats.as_dict(), allow_nan=False)
    assert repr(stats)


def test_the_wait_for_the_first_batch_is_told_apart():
    meter = Meter(0)
    meter.epoch_begins(0, 100.0)
    meter.add(batch(103.0, wait_s=3.0))
    meter.add(batch(104.0, wait_s=0.25))
    meter.epoch_ends(104.75)
    stats = meter.snapshot()
    assert stats.startup_s == 3.0
    assert stats.elapsed_s == 1.75
    assert stats.wait_share == pytest.approx(0.25 / 1.75)
    assert stats.stages["loop"].total_s == pytest.approx(1.5)


def test_time_outside_of_epochs_is_not_counted():
    meter = Meter(0)
    for begin in (0.0, 1000.0):
        meter.epoch_begins(0, begin)
        for step in range(1, 5):
            meter.add(batch(begin + step, wait_s=0.5))
        meter.epoch_ends(begin + 5)
    assert meter.totals().elapsed_s == 9.0  # 2 × 5 less the first batch's second


def test_an_epoch_left_early_counts_to_its_last_batch():
    meter = Meter(0)
    meter.epoch_begins(0, 0.0)
    meter.add(batch(1.0))
    meter.add(batch(2.0))
    meter.epoch_begins(1, 60.0)  # no epoch_ends: the loop did `break`
    meter.add(batch(61.0, wait_s=1.0))
    assert meter.totals().elapsed_s == 2.0
    assert meter.snapshot().epoch == 1


def test_an_untouched_meter_tells_nothing():
    stats = Meter(3).snapshot()
    assert stats.batches == 0
    assert stats.bottleneck == "not known yet"
    assert stats.wait_share == stats.batches_per_s == stats.queue_depth_mean == 0
    assert "consumer 3" in repr(stats)


def test_the_share_of_a_worker_stage_is_of_the_time_of_all_workers():
    meter = Meter(0)
    for worker in range(4):
        meter.worker_started(worker, None)
    meter.epoch_begins(0, 0.0)
    meter.add(batch(0.0))
    for i in range(1, 101):
        meter.add(batch(i * 0.1, worker=i % 4, fetch_s=0.3, collate_s=0.1))
    stats = meter.snapshot()
    assert stats.stages["fetch"].share == pytest.approx(0.75)
    assert stats.stages["collate"].share == pytest.approx(0.25)


def test_workers_that_come_and_go_count_while_they_run():
    meter = Meter(0)
    meter.worker_started(0, None)
    meter.epoch_begins(0, 0.0)
    meter.add(batch(0.0))
    meter.add(batch(10.0))  # one worker
    meter.worker_started(1, None)
    meter.add(batch(20.0, worker=1))  # two
    meter.worker_restarted(1, None)
    meter.add(batch(25.0, worker=1))  # still two
    meter.worker_stopped(0)
    meter.add(batch(35.0, worker=1))  # one
    assert meter.totals().worker_s == 10 + 20 + 10 + 10


@pytest.mark.parametrize(
    ("times", "named"),
    [
        ({"wait_s": 0.07, "fetch_s": 9.0}, "training loop"),
        ({"wait_s": 0.5, "fetch_s": 1.5, "collate_s": 0.3}, "workers: fetch"),
        ({"wait_s": 0.5, "fetch_s": 0.3, "collate_s": 1.5}, "workers: collate"),
        ({"wait_s": 0.5, "encode_s": 1.9}, "workers: encode"),
        ({"wait_s": 0.5, "fetch_s": 0.8, "decode_s": 0.9}, "reader: decode"),
        ({"wait_s": 0.5, "fetch_s": 0.8, "to_device_s": 0.9}, "device copy"),
        ({"wait_s": 0.5, "fetch_s": 0.1, "decode_s": 0.1}, "hand-over"),
    ],
)
def test_the_bottleneck_is_what_is_busiest_while_training_waits(times, named):
    totals = Totals(batches=1, elapsed_s=1.0, worker_s=2.0)._replace(**times)
    assert judge(Evidence(totals)).bottleneck == named


@pytest.mark.parametrize(
    ("rare_fetch_share", "named"), [(0.1, "workers: waiting in fetch"), (0.6, "slow samples")]
)
def test_slow_samples_are_named_where_most_of_the_waiting_goes_with_them(rare_fetch_share, named):
    # Four workers, busy for nine tenths of the time; some samples took far longer than others.
    totals = Totals(batches=100, samples=800, elapsed_s=1.0, worker_s=4.0, fetch_s=3.6, wait_s=0.55)
    evidence = Evidence(
        totals,
        cpu_s=0.1,
        cpu_wait_s=0.0,
        rare_wait_share=0.7,
        rare_fetch_share=rare_fetch_share,
        slowest=((17, 0.3),),
    )
    assert judge(evidence).bottleneck == named


@given(seconds, seconds)
def test_waiting_and_loop_make_up_the_time(wait_s, loop_s):
    totals = Totals(batches=1, elapsed_s=wait_s + loop_s, wait_s=wait_s)
    share = shares(totals)
    assert set(share) == set(STAGES)
    if totals.elapsed_s > 0:
        assert share["wait"] + share["loop"] == pytest.approx(1)


def test_percentiles_are_of_the_whole_run():
    meter = Meter(0)
    meter.epoch_begins(0, 0.0)
    for i in range(2000):
        meter.add(batch(float(i), fetch_s=5.0 if i < 30 else 0.1 if i % 20 else 1.0))
    fetch = meter.snapshot().stages["fetch"]
    assert fetch.p50_s == pytest.approx(0.1, rel=0.05)
    assert fetch.p99_s == pytest.approx(5.0, rel=0.05)
    assert fetch.max_s == 5.0


@given(st.lists(st.floats(0, 9000), min_size=1, max_size=300), st.floats(0, 1))
def test_a_distribution_knows_its_quantiles_within_a_twentieth(values, share):
    whole, halves = Distribution(), Distribution()
    add_rows([whole], np.array([values]))
    for half in (values[::2], values[1::2]):
        add_rows([halves], np.array([half]))
    assert (whole.counts == halves.counts).all()
    right = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    assert whole.quantile(share) == pytest.approx(right, rel=0.05, abs=2e-6)


def test_rare_long_waits_are_told_from_equal_ones():
    equal, rare = Distribution(), Distribution()
    add_rows([equal, rare], np.array([[0.01] * 1000, [0.0001] * 990 + [1.0] * 10]))
    assert equal.share_of_longest(0.02) == pytest.approx(0.02)
    assert rare.share_of_longest(0.02) > 0.98
    assert Distribution().share_of_longest(0.02) == 0


def test_the_ten_slowest_samples_are_kept_by_their_longest_time():
    meter = Meter(0)
    for epoch in range(3):
        for index in range(500):
            meter.took(index, (index % 100) / 1000 + epoch / 10_000)
    slowest = meter.snapshot().slowest
    assert len(slowest) == 10
    assert {index % 100 for index, _ in slowest} == {98, 99}
    assert [seconds for _, seconds in slowest] == sorted((s for _, s in slowest), reverse=True)
    assert slowest[0][1] == pytest.approx(0.0992)


def test_recent_figures_are_of_the_latest_batches():
    meter = Meter(0)
    meter.epoch_begins(0, 0.0)
    for i in range(2000):
        meter.add(batch(i / 10, wait_s=0.05 if i >= 1000 else 0.0, queue_depth=3))
    recent = meter.snapshot().recent
    assert recent.batches_per_s == pytest.approx(10)
    assert recent.samples_per_s == pytest.approx(320)
    assert recent.wait_share == pytest.approx(0.5)
    assert recent.queue_depth == 3


def test_bad_samples_are_counted_and_the_latest_named():
    meter = Meter(0)
    for index in range(1000):
        meter.skipped(index)
    meter.replaced(7)
    stats = meter.snapshot()
    assert (stats.nb_skipped, stats.nb_replaced) == (1000, 1)
    assert stats.skipped == tuple(range(900, 1000))
    assert "skipped: 1,000 (latest 995, 996, 997, 998, 999); replaced: 1 (latest 7)" in repr(stats)


def test_no_count_is_lost_between_threads():
    meter = Meter(0)

    def work(worker: int) -> None:
        for index in range(2000):
            meter.skipped(index)
            meter.worker_restarted(worker, None)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = meter.snapshot()
    assert stats.nb_skipped == stats.restarts == 8000
    assert [row.restarts for row in stats.workers] == [2000] * 4


@pytest.mark.timeout(30)
def test_cpu_and_memory_of_a_worker_survive_its_death():
    burn = "sum(range(3_000_000)); print('burnt', flush=True); input()"
    meter = Meter(0)
    seen = []
    for life in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with process:
            if life == 0:
                meter.worker_started(5, process.pid)
            else:
                meter.worker_restarted(5, process.pid, "died")
            assert process.stdout.readline() == b"burnt\n"
            (row,) = meter.workers()
            assert row.pid == process.pid
            assert row.rss_bytes > 1_000_000
            seen.append(row.cpu_s)
            process.communicate(b"\n")
        (row,) = meter.workers()  # it is gone now
        assert row.rss_bytes is None
        assert row.cpu_s == seen[-1]
    assert seen[1] > seen[0] > 0
    meter.worker_stopped(5)
    (row,) = meter.workers()
    assert (row.pid, row.restarts, row.cpu_s) == (None, 1, seen[1])


def test_the_picture_fits_on_a_screen():
    meter = Meter(0)
    for worker in range(200):
        meter.worker_started(worker, os.getpid())
    meter.epoch_begins(3, 0.0)
    for k in range(1000):
        meter.add(
            batch(
                7 + k * 12.0,
                5.0,
                worker=k % 200,
                nbytes=10**12,
                nb_samples=10**6,
                fetch_s=123.4,
                queue_depth=12,
            )
        )
    stats = meter.snapshot()
    lines = repr(stats).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    text = repr(stats)
    assert "1,000 batches" in text
    assert f"{stats.wait_share:.1%}" in text
    assert stats.bottleneck in text
    assert "restarts: 0" in text
    assert "and 184 workers more" in text
    assert str(replace(stats, consumer=4)) != text


class Recorder:
    def __init__(self) -> None:
        self.intervals: list[float] = []
        self.events: list[tuple[str, dict[str, object]]] = []

    def interval(self, at_s: float) -> float:
        self.intervals.append(at_s)
        return at_s + 1.0

    def event(self, kind: str, facts: dict[str, object]) -> None:
        self.events.append((kind, facts))


def test_a_listener_hears_of_events_and_of_time():
    meter = Meter(0)
    recorder = Recorder()
    meter.listen(recorder, 1.0)
    meter.epoch_begins(0, 0.5)
    for i in range(1, 40):
        meter.add(batch(0.1 * i))
    meter.skipped(4, "why")
    meter.event("warning", text="careful")
    meter.epoch_ends(4.0)
    meter.listen(None)
    meter.skipped(5)
    meter.add(batch(99.0))
    assert [round(at_s, 6) for at_s in recorder.intervals] == [1.0, 2.0, 3.0]
    assert recorder.events == [
        ("epoch_begin", {"epoch": 0}),
        ("skipped", {"index": 4, "why": "why"}),
        ("warning", {"text": "careful"}),
        ("epoch_end", {"epoch": 0}),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (1.42, "1.42 s"),
        (0.0031, "3.1 ms"),
        (12e-6, "12 us"),
        (1e-7, "0.1 us"),
        (185.0, "3 min 05 s"),
        (7380.0, "2 h 03 min"),
    ],
)
def test_seconds_for_the_eye(value, text):
    assert format_seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (9.6e6, "9.6 MB"), (1.5e9, "1.5 GB"), (2e12, "2 TB")],
)
def test_bytes_for_the_eye(value, text):
    assert format_bytes(value) == text
