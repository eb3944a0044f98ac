"""Pictures of the report for the documentation, by a Chromium on the path.

python scripts/screenshots.py    makes a short run, its report, and docs/images/report-*.png
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from swift_loader import SwiftLoader
from swift_loader.report.command import report_main

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
WIDTH, HEIGHT = 1100, 965
_SECONDS = 12.0


class Uneven:
    """Samples that take longer in the middle of the data set."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.008 if 1200 < index < 2400 else 0.001)
        return torch.randn(3, 64, 64)


def run(file: Path) -> None:
    """Training that waits for its data for a part of the time."""
    began = time.monotonic()
    with SwiftLoader(Uneven(), batch_size=32, num_workers=2, benchmark_file=file) as loader:
        while time.monotonic() - began < _SECONDS:
            for _ in loader:
                time.sleep(0.03)  # the training step


def shoot(page: Path, picture: Path, *, dark: bool) -> None:
    """Chromium's picture of a page."""
    flags = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    subprocess.run(
        [
            "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            *flags, f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={picture}", page.as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the report shows the file's name as it is given
        run(Path("run.jsonl"))
        if report_main(["run.jsonl", "--html", "report.html"]):
            sys.exit(1)
        for name in ("light", "dark"):
            shoot(Path("report.html").resolve(), IMAGES / f"report-{name}.png", dark=name == "dark")
