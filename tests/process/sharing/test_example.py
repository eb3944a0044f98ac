"""The examples of sharing, together and in short."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("sklearn") is None, reason="needs the requirements of the examples"
)

ROOT = Path(__file__).parents[3]
LIMIT_S = 110


@pytest.mark.soak
@pytest.mark.timeout(LIMIT_S + 10)
def test_two_trainings_learn_from_one_producer(port: str) -> None:
    def start(name: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / name), "--port", port, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    processes = [
        start("sharing_producer.py", "--short", "--consumers", "2"),
        start("sharing_train.py"),
        start("sharing_train.py", "--learning-rate", "0.05", "--batch-size", "50"),
    ]
    try:
        printed = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0, 0], printed
    assert "epoch 2: 29 batches for" in printed[0]
    assert "the producer has ended after 3 epochs" in printed[1]
    assert "the producer has ended after 3 epochs" in printed[2]
