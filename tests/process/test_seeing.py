"""What a running loader tells: figures while it runs, verdicts that are right."""

from __future__ import annotations

import io
import threading
import time
from html import escape
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from swift_loader import SwiftLoader
from swift_loader.report.page import html_page
from swift_loader.report.runs import read_runs
from swift_loader.telemetry.ranks import RanksStats
from swift_loader.telemetry.stats import LoaderStats
from tests import datasets
from tests.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("nothing_left")


class Sleepy:
    """Each sample waits, as for a disk; one in `rare` waits much longer."""

    def __init__(self, n: int, sleep_s: float, rare: int = 0, rare_s: float = 0.0) -> None:
        self.n, self.sleep_s, self.rare, self.rare_s = n, sleep_s, rare, rare_s

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        time.sleep(self.rare_s if self.rare and index % self.rare == 17 else self.sleep_s)
        return index


class Busy:
    """Each sample computes for so long."""

    def __init__(self, n: int, busy_s: float) -> None:
        self.n, self.busy_s = n, busy_s

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        until_s = time.thread_time() + self.busy_s
        while time.thread_time() < until_s:
            pass
        return index


def stats_of(loader: SwiftLoader, step_s: float, file: Path, epochs: int = 1) -> LoaderStats:
    """After so many epochs with such a step. The page says the same as they do."""
    with loader:
        for _ in range(epochs):
            for _ in loader:
                time.sleep(step_s)
        stats = loader.stats()
    (run,), _ = read_runs([file])
    said = {run.verdict.bottleneck, stats.bottleneck}
    # The file's last figures are a moment older: beside other processes, workers that starve for
    # half of their time may fall on either side of the line between these two.
    assert len(said) == 1 or said == {"workers: fetch", "CPUs"}, (run.evidence, stats)
    assert escape(run.verdict.sentence) in html_page([run])
    return stats


def test_a_callable_gets_the_figures_of_a_run() -> None:
    got: list[dict[str, float]] = []
    with SwiftLoader(datasets.Numbers, {"n": 64}, 4, metrics=got.append) as loader:
        nb_batches = sum(1 for _ in loader)
        figures = loader.metrics()
    assert figures["swift_loader_batches_total"] == nb_batches == 16
    assert figures["swift_loader_samples_total"] == 64
    assert got[-1]["swift_loader_batches_total"] == 16


def test_a_sink_that_hangs_holds_up_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swift_loader.telemetry.sinks.pump.INTERVAL_S", 0.02)
    monkeypatch.setattr("swift_loader.telemetry.sinks.pump._CLOSE_S", 0.2)
    free, entered = threading.Event(), threading.Event()

    def hang(figures: dict[str, float]) -> None:
        entered.set()
        free.wait(60)

    with pytest.warns(RuntimeWarning, match="does not return"):  # noqa: PT031
        with SwiftLoader(datasets.Numbers, {"n": 64}, 4, metrics=hang) as loader:
            loader.start()
            assert entered.wait(20)
            began_s = time.monotonic()
            assert sum(1 for _ in loader) == 16
            assert time.monotonic() - began_s < 10
    free.set()


def test_the_slowest_samples_are_named() -> None:
    kwargs = {"n": 400, "sleep_s": 0.0001, "rare": 200, "rare_s": 0.05}
    with SwiftLoader(Sleepy, kwargs, 4, worker_per_consumer=2) as loader:
        for _ in range(2):  # the first batches are not timed sample by sample
            for _ in loader:
                pass
        slowest = loader.stats().slowest
    assert {index for index, _ in slowest[:2]} == {17, 217}
    assert all(0.04 < seconds < 1 for _, seconds in slowest[:2])
    assert slowest[2][1] < 0.04


def test_slow_storage_is_named(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    kwargs = {"n": 96, "sleep_s": 0.02}
    loader = SwiftLoader(Sleepy, kwargs, 4, worker_per_consumer=2, benchmark_file=file)
    stats = stats_of(loader, 0.001, file)
    assert stats.bottleneck == "workers: waiting in fetch", stats
    assert "threads_per_worker" in stats.advice


def test_slow_code_is_named(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    loader = SwiftLoader(Busy, {"n": 200, "busy_s": 0.004}, 4, benchmark_file=file)
    stats = stats_of(loader, 0.0, file)
    # With other processes beside it, its worker starves.
    assert stats.bottleneck in ("workers: fetch", "CPUs"), stats
    assert "worker" in stats.advice


def test_workers_that_starve_for_cpus_are_told_from_slow_code(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    options: dict[str, Any] = {"worker_per_consumer": 4, "worker_affinity": [0]}
    loader = SwiftLoader(Busy, {"n": 192, "busy_s": 0.004}, 4, benchmark_file=file, **options)
    stats = stats_of(loader, 0.0, file)
    assert stats.bottleneck == "CPUs", stats
    assert "fewer do as well" in stats.advice


def test_a_slow_step_is_named(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    kwargs = {"n": 160, "sleep_s": 0.0005}
    loader = SwiftLoader(Sleepy, kwargs, 4, worker_per_consumer=2, benchmark_file=file)
    stats = stats_of(loader, 0.02, file)
    assert stats.bottleneck == "training loop", stats
    assert stats.verdict.startswith("The training loop is the bottleneck: loading costs")


def test_one_slow_sample_in_a_thousand_is_named(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    kwargs = {"n": 2000, "sleep_s": 0.0001, "rare": 1000, "rare_s": 0.5}
    loader = SwiftLoader(Sleepy, kwargs, 4, worker_per_consumer=2, benchmark_file=file)
    stats = stats_of(loader, 0.001, file, epochs=2)
    assert stats.bottleneck == "slow samples", stats
    assert "in_order=False" in stats.advice
    assert {index for index, _ in stats.slowest[:2]} == {17, 1017}


def _rank_with_slow_data(rank: int) -> RanksStats:
    kwargs = {"n": 160, "sleep_s": 0.01 if rank == 1 else 0.0}
    with SwiftLoader(Sleepy, kwargs, 4, nb_consumer=2) as loader:
        loader.start(rank)
        for _ in loader:
            torch.distributed.all_reduce(torch.ones(1))
            time.sleep(0.01)
        return loader.stats(all_ranks=True)


@pytest.fixture(scope="module")
def forkserver() -> None:
    """Of `run_ranks`: it stays for all tests of this process."""
    run_ranks(1, int, timeout_s=60)


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("forkserver")
def test_the_rank_that_makes_the_others_wait_is_named() -> None:
    for told in run_ranks(2, _rank_with_slow_data, timeout_s=90):
        assert isinstance(told, RanksStats), told
        assert [stats.consumer for stats in told.ranks] == [0, 1]
        assert told.slow_rank == 1, told
        assert told.ranks[0].bottleneck == "training loop"
        assert told.ranks[1].bottleneck == "workers: waiting in fetch"


@pytest.fixture
def no_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    """tqdm keeps a thread that looks after slow bars."""
    monkeypatch.setattr(pytest.importorskip("tqdm").tqdm, "monitor_interval", 0)


@pytest.mark.usefixtures("no_monitor")
def test_a_bar_shows_the_epoch_and_how_long_training_waited() -> None:
    out = io.StringIO()
    with SwiftLoader(datasets.Numbers, {"n": 64}, 4, worker_per_consumer=2) as loader:
        bar = loader.progress(file=out, mininterval=0)
        assert sum(1 for _ in bar) == 16
    text = out.getvalue()
    assert "epoch 0" in text
    assert "16/16" in text
    assert "waited" in text


@pytest.mark.usefixtures("no_monitor")
def test_progress_shows_a_bar_for_each_epoch(capfd: pytest.CaptureFixture[str]) -> None:
    with SwiftLoader(datasets.Numbers, {"n": 64}, 4, progress=True) as loader:
        for _ in loader:
            break
        for _ in loader:
            pass
    told = capfd.readouterr().err
    assert "epoch 0" in told
    assert "epoch 1" in told
    assert "16/16" in told


def test_a_notebook_shows_what_a_loader_is_and_does() -> None:
    collate = "</td><script>alert(1)</script>\x1b[2J"
    with SwiftLoader(datasets.Numbers, {"n": 64}, 4) as loader:
        loader._given["note"] = collate  # as a name of the user's
        before = loader._repr_html_()
        for _ in loader:
            pass
        after = loader._repr_html_()
        stats = loader.stats()
    assert "not started" in before
    assert "loading costs" in after or "waited for data" in after
    for text in (before, after, stats._repr_html_()):
        assert "<script>" not in text
        assert "\x1b" not in text
        assert text.count("<tr>") == text.count("</tr>") > 1
    assert "numbers" in after.lower()


def test_a_log_has_one_line_of_the_start_and_none_for_a_batch(tmp_path: Path) -> None:
    prefix = str(tmp_path / "run-")
    options: dict[str, Any] = {"benchmark": False, "seed": 7, "worker_per_consumer": 2}
    with SwiftLoader(datasets.Numbers, {"n": 64}, 4, logger=prefix, **options) as loader:
        assert sum(1 for _ in loader) == 16
    [line] = Path(f"{prefix}consumer-0.log").read_text().splitlines()
    for told in ("Numbers", "2 workers", "'seed': 7", "swift_loader ", "torch "):
        assert told in line
