"""`swift-loader share` in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swift_loader.cli import main
from swift_loader.sharing import ProducerGoneError, TensorConsumer

ROOT = Path(__file__).parents[3]
SOURCE = """
import torch
def make_loader():
    return [torch.full((3,), i) for i in range(8)]
"""


def _share(folder: Path, *options: str) -> subprocess.Popen[str]:
    (folder / "shared_data.py").write_text(SOURCE)
    return subprocess.Popen(
        [sys.executable, "-m", "swift_loader.cli", "share", "shared_data:make_loader", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_share_serves_its_epochs_shows_its_consumers_and_ends(
    party: Any, port: str, tmp_path: Path
) -> None:
    def read() -> list[int]:
        consumer = TensorConsumer(port, name="reader", connect_timeout=90)
        return [int(batch[0]) for _ in range(2) for batch in consumer]

    with _share(
        tmp_path, "--port", port, "--epochs", "2", "--every", "0.001", "--wait-for", "1"
    ) as process:
        assert party(read).result() == [*range(8), *range(8)]
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0, printed
    assert f"epoch 1 at port {port}" in printed
    assert "reader (process" in printed


def test_share_ends_at_once_by_ctrl_c(port: str, tmp_path: Path) -> None:
    with _share(tmp_path, "--port", port) as process:
        consumer = TensorConsumer(port, connect_timeout=90)
        next(consumer)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
        with contextlib.suppress(ProducerGoneError):  # unless it had the whole epoch by then
            list(consumer)
    assert process.returncode == 130, printed
    assert "Traceback" not in printed


def test_share_refuses_a_data_set_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shared_set.py").write_text(
        "import torch\ndef make():\n    return torch.utils.data.TensorDataset(torch.zeros(3))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["share", "shared_set:make"]) == 1
    error = capsys.readouterr().err
    assert "gives a data set (TensorDataset)" in error
    assert error.count("\n") == 1
