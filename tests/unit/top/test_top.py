"""`swift-loader top`: what it shows of files and of pages for Prometheus, once and live."""

from __future__ import annotations

import io
import os
import socket
import threading
from typing import Any

import pytest

from swift_loader.cli import main
from swift_loader.errors import ConfigError
from swift_loader.report.runs import RunReader
from swift_loader.top.command import top
from swift_loader.top.tables import of_endpoint, of_figures

rich_console = pytest.importorskip("rich.console", reason="needs rich")


def shown(*argv: str) -> str:
    out = io.StringIO()
    assert top([*argv, "--once"], rich_console.Console(file=out, width=100)) == 0
    return out.getvalue()


def test_ranks_and_workers_of_files_are_shown(tmp_path, write_run) -> None:
    files = [str(write_run(tmp_path / f"{i}.jsonl", consumer=i)) for i in range(2)]
    text = shown(*files)
    assert "Ranks" in text
    assert "training loop" in text
    assert "0/1" in text  # worker 1 of rank 0
    assert "ended" in text


def test_a_file_that_grows_is_read_on(tmp_path, write_run) -> None:
    data = write_run(tmp_path / "whole.jsonl").read_bytes()
    growing = tmp_path / "run.jsonl"
    growing.write_bytes(b"")
    reader = RunReader(growing)
    assert reader.read() == []
    with growing.open("ab") as file:
        for start in range(0, len(data), 777):  # in the middle of lines too
            file.write(data[start : start + 777])
            file.flush()
            reader.read()
    (run,) = reader.read()
    (whole,) = RunReader(tmp_path / "whole.jsonl").read()
    assert (run.totals, run.summary) == (whole.totals, whole.summary)
    assert reader.passed_over == 0


def test_names_of_users_are_neither_obeyed_nor_markup() -> None:
    evil = "[red]train\x1b[2J.py"
    figures = {
        ("swift_loader_producer_consumers", (("loader", "port 5"),)): 1.0,
        (
            "swift_loader_producer_consumer_batches_total",
            (("consumer", evil), ("loader", "port 5")),
        ): 7.0,
    }
    (table,) = of_figures(figures, {}, 1.0)
    assert table.rows[0][:2] == (evil, "7")
    out = io.StringIO()
    from swift_loader.top.command import _drawn

    rich_console.Console(file=out, width=100).print(_drawn([table]))
    assert "\x1b" not in out.getvalue()
    assert "[red]train" in out.getvalue()


def test_rates_are_of_the_time_between_two_looks() -> None:
    of = (("loader", "Images"),)

    def page(batches: float, samples: float) -> dict[Any, float]:
        return {
            ("swift_loader_batches_total", of): batches,
            ("swift_loader_samples_total", of): samples,
            ("swift_loader_recent_wait_ratio", of): 0.25,
            ("swift_loader_cache_hits_total", of): 11.0,
        }

    loaders, others = of_figures(page(30, 960), page(10, 320), 2.0)
    told = dict(zip(loaders.head, loaders.rows[0], strict=True))
    assert told["loader"] == "Images"
    assert (told["batches/s"], told["samples/s"], told["waits"]) == ("10.0", "320", "25%")
    assert others.rows == (("cache_hits_total", "11"),)


def test_an_endpoint_is_shown() -> None:
    session = {"session": 3, "dataset": "Images", "state": "working", "consumer": 1, "workers": 2,
               "batches": 1234, "orders_waiting": 5}  # fmt: skip
    facts = {"address": "tcp://127.0.0.1:6543", "workers": 8, "workers_running": 2,
             "uptime_s": 61.0, "sessions": [session]}  # fmt: skip
    (table,) = of_endpoint(facts)
    assert "2 of 8 workers run" in table.note
    assert table.rows == (("3 Images", "working", "1", "2", "1,234", "5"),)


def test_a_page_of_a_loader_is_shown_and_one_that_does_not_answer_too() -> None:
    pytest.importorskip("prometheus_client")
    from swift_loader.telemetry.metrics import Meter
    from swift_loader.telemetry.readings import loader_readings
    from swift_loader.telemetry.sinks.prometheus import Page
    from swift_loader.telemetry.sinks.sink import Source

    meter = Meter(0)
    meter.worker_started(0, None)
    page = Page("127.0.0.1", 0, Source("Images", lambda: loader_readings(meter.snapshot())))
    try:
        text = shown(f"prometheus://127.0.0.1:{page.port}")
    finally:
        page.close()
    assert "Images" in text
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "does not answer" in shown(f"prometheus://127.0.0.1:{port}")


def test_a_live_table_ends_by_ctrl_c(tmp_path, write_run, monkeypatch) -> None:
    file = str(write_run(tmp_path / "run.jsonl"))
    waits = iter(range(3))

    def wait(self: threading.Event, timeout: float | None = None) -> bool:
        if next(waits, None) is None:
            raise KeyboardInterrupt
        return False

    out = io.StringIO()
    monkeypatch.setattr("swift_loader.top.command.threading.Event.wait", wait)
    assert top([file, "--every", "0.01"], rich_console.Console(file=out, width=100)) == 0
    assert "Ranks" in out.getvalue()


def test_without_a_place_the_latest_file_of_the_folder_is_shown(
    tmp_path, write_run, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text('{"text": "no benchmark"}\n')
    assert main(["top", "--once"]) == 1
    assert "no benchmark file is in this folder" in capsys.readouterr().err
    for name, consumer in (("old", 3), ("new", 5)):
        write_run(tmp_path / f"{name}.jsonl", consumer=consumer)
    os.utime(tmp_path / "old.jsonl", (0, 0))
    assert main(["top", "--once"]) == 0
    shown = capsys.readouterr().out
    assert "5/0" in shown
    assert "3/0" not in shown


@pytest.mark.parametrize("place", ["none.jsonl", "ftp://x"])
def test_a_wrong_place_is_refused_with_the_fix(place, capsys) -> None:
    with pytest.raises(ConfigError, match="prometheus://HOST:PORT"):
        top([place])
    assert main(["top", place]) == 1
    assert capsys.readouterr().err.count("\n") == 1
