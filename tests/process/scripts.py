"""Running whole scripts that use the loader, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
GONE_WITHIN_S = 4.0  # the product promises 2; a loaded machine gets as much again

PREAMBLE = """
import os, sys, time, signal, threading
import torch
from swift_loader import SwiftLoader

class Dataset:
    def __init__(self, n, delay_s=0.0):
        self.n, self.delay_s = n, delay_s
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        time.sleep(self.delay_s)
        return torch.full((2000,), float(i)), i
"""


def command(script: Path | str) -> list[str]:
    return [sys.executable, "-W", "ignore::DeprecationWarning", str(script)]


def printed_by(
    script: str, folder: Path, *arguments: str, warns: bool = False, timeout_s: float = 150
) -> tuple[str, str]:
    """What a script that is run in `folder` writes to stdout and to stderr. It must end well."""
    (folder / "script.py").write_text(script)
    run = subprocess.run(
        [sys.executable, *([] if warns else ["-W", "ignore"]), "script.py", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout, run.stderr


@contextmanager
def running(script: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The script as a process group of its own; killed at the end if it still runs."""
    path = folder / "script.py"
    path.write_text(PREAMBLE + script)
    process = subprocess.Popen(
        command(path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill_family(process.pid)
        print(process.communicate()[1])  # for the report of a test that failed


def assert_nothing_new_in_shm(before: set[str], within_s: float = 10.0) -> None:
    """Tests that run at the same time may have files there, for a moment."""
    deadline_s = time.monotonic() + within_s
    new = set(os.listdir("/dev/shm")) - before
    while new and time.monotonic() < deadline_s:
        time.sleep(0.05)
        new &= set(os.listdir("/dev/shm"))
    assert not new, new


def kill_family(pid: int) -> None:
    """Whatever is left; some of it may end by itself just then."""
    for left in family(pid):
        with suppress(psutil.NoSuchProcess):
            left.kill()


def environment() -> dict[str, str]:
    """Without buffers, two workers that print a line at once mix them: a text, then its end."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def living(pids: Iterable[int | None]) -> list[psutil.Process]:
    """Those of them that have not ended, which may happen between a look and the next."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found += [psutil.Process(pid)] if pid is not None else []
    return found


def family(pid: int) -> list[psutil.Process]:
    """The process and all that descend from it."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    """Read the script's output up to a line."""
    assert process.stdout is not None
    for text in process.stdout:
        print(text, end="")  # for the report of a test that waited too long
        if text.strip() == line:
            return
    assert process.stderr is not None
    raise AssertionError(f"{line!r} did not come; stderr: {process.stderr.read()}")


def assert_gone(processes: list[psutil.Process], within_s: float = GONE_WITHIN_S) -> None:
    _, alive = psutil.wait_procs(processes, within_s)
    assert not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
