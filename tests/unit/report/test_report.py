"""`swift-loader report`: reading benchmark files back, and the terminal form."""

from __future__ import annotations

import json
import re
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_loader import SwiftLoader
from swift_loader.report.command import report_main
from swift_loader.report.facts import comparison
from swift_loader.report.page import html_page
from swift_loader.report.runs import Interval, WorkerUse, merge, read_runs, waiting
from swift_loader.report.terminal import clock, terminal_text
from swift_loader.telemetry.log import LogConfig, open_log
from swift_loader.telemetry.metrics import Meter
from swift_loader.telemetry.monitor import open_benchmark
from swift_loader.telemetry.stats import Totals


def interval(from_s: float, t_s: float, wait_share: float = 0.0, batches: int = 10) -> Interval:
    elapsed_s = t_s - from_s if batches else 0.0
    return Interval(
        from_s=from_s,
        t_s=t_s,
        epoch=0,
        totals=Totals(
            batches=batches,
            samples=32 * batches,
            elapsed_s=elapsed_s,
            worker_s=2 * elapsed_s,
            fetch_s=1.9 * elapsed_s,
            wait_s=wait_share * elapsed_s,
            queue_depth=3 * batches,
        ),
        consumer_cpu=0.5,
        consumer_rss_bytes=1000,
        workers=(WorkerUse(0, 11, batches, 0.25, 500), WorkerUse(1, 12, 0, None, None)),
        events={"skipped": 1},
    )


def run_of(intervals, tmp_path, write_run):
    (run,), _ = read_runs([write_run(tmp_path / "empty.jsonl", batches=1)])
    return type(run)(run.run, "a run", run.header, tuple(intervals), (), run.summary)


def test_a_run_is_read_back_as_it_was(tmp_path, write_run):
    path = write_run(tmp_path / "run.jsonl")
    (run,), passed_over = read_runs([path])
    summary = json.loads(path.read_text().splitlines()[-1])["stats"]
    assert passed_over == 0
    assert run.summary == summary
    totals = run.totals
    assert (totals.batches, totals.samples, totals.nbytes) == (60, 1920, 60_000_000)
    assert totals.fetch_s == pytest.approx(summary["stages"]["fetch"]["total_s"])
    assert totals.queue_depth / totals.batches == pytest.approx(summary["queue_depth_mean"])
    assert run.event_counts["restart"] == run.event_counts["skipped"] == 1
    assert [event.kind for event in run.events].count("epoch_begin") == 2


def test_a_killed_run_and_a_line_cut_short_are_still_read(tmp_path, write_run):
    path = write_run(tmp_path / "run.jsonl", killed=True)
    text = path.read_text()
    path.write_text("noise\n\n" + text[:-40])
    (run,), passed_over = read_runs([path])
    assert passed_over == 2
    assert run.summary is None
    assert 0 < run.totals.batches <= 60
    assert "the process was killed" in terminal_text([run], passed_over)
    assert "2 lines were cut short" in terminal_text([run], passed_over)


@pytest.mark.parametrize(
    "broken",
    [
        '{"kind":"interval","run":"a","t_s":1}',
        '{"kind":"interval"}',
        '{"kind":"event","run":"a","t_s":"soon","event":"x","facts":{}}',
        '{"kind":"event","run":"a","t_s":1,"event":"x","facts":7}',
        '{"kind":"novelty","run":"a","t_s":1}',
        '{"kind":"summary","run":"a","stats":5}',
        "[1, 2]",
        "\x00\ufffd",
    ],
)
def test_lines_that_are_none_of_ours_are_passed_over(tmp_path, broken):
    (tmp_path / "x").write_text(broken + "\n")
    _, passed_over = read_runs([tmp_path / "x"])
    assert passed_over == 1


def test_several_consumers_in_one_file_are_several_runs(tmp_path, write_run):
    path = tmp_path / "run.jsonl"
    for consumer in range(2):
        write_run(path, consumer=consumer, batches=5)
    runs, _ = read_runs([path])
    assert [run.label for run in runs] == [
        f"{path} #1, consumer 0",
        f"{path} #2, consumer 1",
    ]


def test_a_log_with_benchmark_lines_is_read_too(tmp_path):
    with closing(open_log(LogConfig(path=f"{tmp_path}/"), "consumer-0")) as log:
        log.logger.info("something else")
        with closing(
            open_benchmark(Meter(0), path=None, logger=log.logger, plan={"n": 1}, options={})
        ):
            pass
    (run,), passed_over = read_runs([tmp_path / "consumer-0.log"])
    assert passed_over == 1
    assert run.header["plan"] == {"n": 1}
    assert run.verdict.sentence == "No batch was delivered."


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.integers(0, 9), st.floats(0, 1)), max_size=60),
    st.integers(1, 20),
)
def test_merging_intervals_leaves_nothing_out(rows, at_most):
    intervals, at_s = [], 0.0
    for duration_s, batches, wait_share in rows:
        intervals.append(interval(at_s, at_s + duration_s, wait_share, batches))
        at_s += duration_s
    merged = merge(intervals, at_most)
    assert len(merged) <= at_most
    if not intervals:
        assert merged == []
        return
    assert (merged[0].from_s, merged[-1].t_s) == (0.0, intervals[-1].t_s)
    for name in Totals._fields:
        whole = sum(getattr(i.totals, name) for i in intervals)
        assert sum(getattr(i.totals, name) for i in merged) == pytest.approx(whole)
    assert sum(i.events["skipped"] for i in merged) == len(intervals)
    assert sum(i.workers[0].batches for i in merged) == sum(row[1] for row in rows)
    for piece in merged:
        assert piece.consumer_cpu == pytest.approx(0.5)
        assert piece.workers[0].cpu == pytest.approx(0.25)
        assert piece.workers[1].cpu is None


def test_a_stage_that_there_was_not_is_not_shown(tmp_path):
    file = tmp_path / "run.jsonl"
    with SwiftLoader(range(64), batch_size=4, num_workers=0, benchmark_file=file) as loader:
        assert len(list(loader)) == 16
        stats = loader.stats()
    runs = read_runs([file])[0]
    for text in (repr(stats), stats._repr_html_(), terminal_text(runs), html_page(runs)):
        assert "fetch" in text
        assert "device copy" not in text
        assert "to_device" not in text.replace("max_nb_batch_on_device", "")


def test_when_training_waited(tmp_path, write_run):
    pieces = [interval(i, i + 1.0) for i in range(20)]
    pieces[3:5] = [interval(3.0, 4.0, 0.5), interval(4.0, 5.0, 0.7)]
    pieces[10:14] = [interval(i, i + 1.0, 0.9) for i in (10.0, 11.0)] + [
        interval(12.0, 13.0, batches=0),  # a pause of the loop does not end it
        interval(13.0, 14.0, 0.9),
    ]
    run = run_of(pieces, tmp_path, write_run)
    first, second = waiting(run)
    assert (first.from_s, first.t_s, first.bottleneck) == (10.0, 14.0, "workers: fetch")
    assert first.waited_s == pytest.approx(2.7)
    assert (second.from_s, second.t_s) == (3.0, 5.0)
    text = terminal_text([run])
    assert "Training waited for data" in text
    assert "Waited 2.7 s between 0:10.0 and 0:14.0 (workers: fetch)." in text


def test_the_verdict_says_whether_training_waited(tmp_path, write_run):
    (well,), _ = read_runs([write_run(tmp_path / "a.jsonl", wait_s=0.0)])
    (ill,), _ = read_runs([write_run(tmp_path / "b.jsonl", wait_s=0.004)])
    told = "The training loop is the bottleneck: loading costs 0.0% of the time"
    assert well.verdict.sentence.startswith(told)
    assert ill.verdict.sentence.startswith("Training waited for data")
    assert 0.1 < ill.totals.wait_share < 0.9


def test_runs_stand_beside_each_other(tmp_path, write_run):
    paths = [write_run(tmp_path / f"{i}.jsonl", batches=10 * i) for i in (1, 2, 3)]
    runs, _ = read_runs(paths)
    rows = {row[0]: row[1:] for row in comparison(runs)}
    assert rows["batches"] == ["20", "40", "60"]
    assert rows["restarts"] == ["1", "1", "1"]
    assert all(len(row) == 3 for row in rows.values())


def test_the_second_of_two_runs_is_told_by_its_change(tmp_path, write_run):
    paths = [write_run(tmp_path / "a.jsonl", batches=10, wait_s=0.004),
             write_run(tmp_path / "b.jsonl", batches=30, wait_s=0.0)]  # fmt: skip
    head, *rows = comparison(read_runs(paths)[0])
    changes = {row[0]: row[-1] for row in rows}
    assert head[-1] == "change"
    assert changes["batches"] == "+40"
    assert changes["restarts"] == "the same"
    assert re.fullmatch(r"-\d+\.\d points", changes["waited for data"])
    assert re.fullmatch(r"[+-]\d+\.\d%", changes["samples/s"])  # others may have had the CPUs
    assert changes["bottleneck"] == ""


def test_the_command_prints_the_report_and_writes_the_page(tmp_path, write_run, capsys):
    path = write_run(tmp_path / "run.jsonl", wait_s=0.004)
    page = tmp_path / "report.html"
    assert report_main([str(path), "--html", str(page)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for text in (
        "Training waited for data",
        "workers: fetch",
        "queue depth",
        "worker 1 restarted",
        "killed by \\x1b[31msignal 9",
        "sample 17 skipped: OSError: truncated",
        "warning: the queue is short",
        str(page),
    ):
        assert text in out
    assert max(map(len, out.replace(str(tmp_path), "").splitlines())) <= 100
    assert page.read_text().startswith("<!doctype html>")


def test_the_command_says_what_it_can_not_do(tmp_path, write_run, capsys):
    assert report_main([str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl" in capsys.readouterr().err
    (tmp_path / "other.txt").write_text("hello\n")
    assert report_main([str(tmp_path / "other.txt")]) == 1
    assert "is it a benchmark_file?" in capsys.readouterr().err
    path = write_run(tmp_path / "run.jsonl", batches=2)
    assert report_main([str(path), "--html", str(tmp_path / "no" / "page.html")]) == 1
    assert "page.html" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        report_main([])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.24, "0:07.2"), (59.97, "1:00"), (760, "12:40"), (11100, "3:05:00")]
)
def test_places_on_the_time_line(seconds, text):
    assert clock(seconds) == text
