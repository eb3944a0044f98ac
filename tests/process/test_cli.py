"""The command line: what a stranger types, and what comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swift_loader.cli import main

ROOT = Path(__file__).parents[2]
LIMIT_S = 100

_DATA = '''
import time
import numpy as np

class Rows:
    """Sample i: a row of zeros."""
    def __init__(self, n=640, wait_s=0.0):
        self.n, self.wait_s = n, wait_s
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        time.sleep(self.wait_s)
        return np.zeros(1000, np.float32), i

def stream():
    return iter(range(10))

not_a_data_set = 3
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_data.py").write_text(_DATA)
    return tmp_path


def swift_loader(folder: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    """What it prints, and what it says on stderr; it must end with `code`."""
    done = subprocess.run(
        [sys.executable, "-m", "swift_loader.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def bench_json(folder: Path, *arguments: str) -> dict[str, Any]:
    printed, _ = swift_loader(
        folder, "bench", "my_data:Rows", "--seconds", "0.3", "--json", *arguments
    )
    found: dict[str, Any] = json.loads(printed)
    return found


def test_help_names_all_commands_and_a_wrong_one_is_refused(folder: Path) -> None:
    printed, _ = swift_loader(folder, "--help")
    for command in ("bench", "report", "serve", "keygen", "share"):
        assert f"  {command} " in printed
    _, complaint = swift_loader(folder, "bnech", code=2)
    assert "there is no command 'bnech'" in complaint


def test_version_is_told(folder: Path) -> None:
    printed, _ = swift_loader(folder, "--version")
    assert printed.startswith("swift-loader ")
    assert len(printed.splitlines()) == 1


def test_bench_shows_each_way_and_recommends(folder: Path) -> None:
    printed, progress = swift_loader(
        folder, "bench", "my_data:Rows", "--batch-size", "32", "--seconds", "0.3", "--workers", "1"
    )
    for way in ("dataset alone", "no workers", "swift_loader, 1 worker", "torch DataLoader, 1"):
        assert way in printed
    assert "worker_per_consumer=1" in printed
    assert "What to fix first" in printed
    assert "[1/4] dataset alone" in progress


@pytest.mark.soak
def test_bench_of_what_waits_recommends_threads_and_says_whether_they_keep_up(folder: Path) -> None:
    waits = ["--kwargs", '{"wait_s": 0.002}', "--workers", "1", "--no-torch", "--step-ms", "1"]
    found = bench_json(folder, *waits)
    names = [trial["name"] for trial in found["trials"]]
    assert names[:4] == [
        "dataset alone",
        "no workers",
        "swift_loader, 1 worker",
        "swift_loader, 1 worker x 8 threads",
    ]
    assert found["recommended"]["threads_per_worker"] >= 8
    advised = [found["recommended"][name] for name in ("worker_per_consumer", "threads_per_worker")]
    assert advised in [[trial["workers"], trial["threads"]] for trial in found["trials"]]
    assert found["cpus"]["used_by_others"] >= 0
    assert found["recommended"]["enough"] is False  # 64 samples a millisecond
    assert found["trials"][0]["cpu_share"] < 0.5
    assert found["cpus"]["usable"] >= 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["my_data:Nothing"], "'my_data:Nothing' can't be found"),
        (["no_such_module:Rows"], "can't be found: No module named 'no_such_module'"),
        (["my_data:not_a_data_set"], "is a int; give what builds the data set"),
        (["my_data:stream"], "the data set is a stream"),
        (["my_data:Rows", "--kwargs", "{n: 3}"], "is no JSON"),
        (["my_data:Rows", "--kwargs", "[3]"], "give an object"),
        (["my_data:Rows", "--kwargs", '{"n": 0}'], "the data set has no samples"),
        (["my_data:Rows", "--kwargs", '{"m": 3}'], "unexpected keyword argument 'm'; the data set"),
    ],
)
def test_bench_refuses_in_one_line(
    folder: Path,
    arguments: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_data", raising=False)
    assert main(["bench", *arguments]) == 1
    said = capsys.readouterr().err
    assert complaint in said
    assert "Traceback" not in said


def test_error_of_the_data_set_keeps_its_traceback(folder: Path) -> None:
    _, said = swift_loader(folder, "bench", "my_data:Rows", "--kwargs", '{"n": "x"}', code=1)
    assert "TypeError" in said
    assert "Traceback" in said


def test_report_reads_what_a_run_wrote(folder: Path) -> None:
    script = """
from my_data import Rows
from swift_loader import SwiftLoader
with SwiftLoader(Rows, batch_size=32, benchmark_file="run.jsonl") as loader:
    for _ in range(3):
        for batch in loader:
            pass
"""
    subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}"},
        check=True,
        timeout=LIMIT_S,
    )
    printed, _ = swift_loader(folder, "report", "run.jsonl", "--html", "report.html")
    assert "run.jsonl, consumer 0" in printed
    assert "The page: report.html" in printed
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
