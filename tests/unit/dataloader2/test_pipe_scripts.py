"""Whole scripts: however one ends, its workers end, and it exits by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.timeout(100)
ROOT = Path(__file__).parents[3]
GONE_WITHIN_S = 10.0  # of a loaded machine

PREAMBLE = """
import os, sys, time
from torch.utils.data import IterDataPipe
from swift_loader.dataloader2 import DataLoader2, MultiProcessingReadingService
from swift_loader.dataloader2.iter import IterableWrapper

class Mine(IterDataPipe):
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        for i in range(self.n):
            yield Item(i)

class Home(Mine):
    def is_replicable(self):
        return False
    def __iter__(self):
        yield from self.n

class Item:
    def __init__(self, value):
        self.value = value

def with_pid(item):
    return os.getpid(), item

pipe = Mine(10**6).sharding_filter().map(with_pid).map(lambda pair: pair)
pipe = Home(pipe).prefetch(2)
loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(2))
iterator = iter(loader)
pids = set()
for _ in range(4):
    pid, item = next(iterator)
    assert type(item) is Item
    pids.add(pid)
print(*pids, flush=True)
"""
ENDS = {
    "falls off its end": "",
    "raises": "raise KeyError('in the training loop')",
    "is killed": "time.sleep(1000)",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_script_leaves_no_process_behind(end: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + ENDS[end])
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        workers = [int(pid) for pid in process.stdout.readline().split()]
        assert len(workers) == 2
        if end == "is killed":
            process.send_signal(signal.SIGKILL)
        status = process.wait(60)
        errors = process.stderr.read()
    expected = {"raises": 1, "is killed": -signal.SIGKILL}
    assert status == expected.get(end, 0), errors
    if end == "raises":
        assert errors.count("Traceback") == 1
        assert "KeyError: 'in the training loop'" in errors
    else:
        assert errors == ""
    deadline = time.monotonic() + GONE_WITHIN_S
    while any(psutil.pid_exists(pid) for pid in workers):
        assert time.monotonic() < deadline, "a worker outlived its script"
        time.sleep(0.05)
