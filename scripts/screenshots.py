"""Pictures of the report and of a trace for the documentation, by a Chromium on the path.

python scripts/screenshots.py           a short run, its report, and docs/images/report-*.png
python scripts/screenshots.py FOLDER    a short run in torch's profiler, and docs/images/trace.png

FOLDER has a viewer of traces that works without the network: ``trace_viewer_full.html`` out of the
wheel of torch-tb-profiler, and ``webcomponents.min.js`` of the npm package webcomponents.js 0.7.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from swift_loader import SwiftLoader
from swift_loader.report.command import report_main
from swift_loader.report.joined import trace_main

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
WIDTH, HEIGHT = 1100, 965
SMALL = "--window-size=1100,380"
_SECONDS = 12.0
_STEPS = 8  # of the trace that are shown


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


class Images:
    """Samples that take a moment."""

    def __len__(self) -> int:
        return 960

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.003)
        return torch.randn(3, 32, 32)


def traced(file: Path) -> None:
    """A few steps that wait for their batches, in a trace of the loader's and of torch's."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with (
        SwiftLoader(Images(), batch_size=16, num_workers=3, trace_file="loader.json") as loader,
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
    ):
        for images in loader:
            with torch.profiler.record_function("training step"):
                loss = model(images).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                time.sleep(0.002)
    profile.export_chrome_trace("torch.json")
    if trace_main(["loader.json", "torch.json", "--out", str(file)]):
        sys.exit(1)


VIEW = """<!doctype html><meta charset="utf-8"><title>trace</title>
<script src="webcomponents.min.js"></script><link rel="import" href="trace_viewer_full.html">
<style>html,body{margin:0;height:100%;overflow:hidden}#viewer{width:100%;height:100%}
tr-ui-a-analysis-view,tr-ui-side-panel-container,tr-ui-b-mouse-mode-selector,
tr-ui-b-drag-handle{display:none!important}</style>
<script>
window.__hideTraceViewerPolyfillWarning = true;
addEventListener('WebComponentsReady', () => {
  const tracks = document.createElement('track-view-container');
  tracks.id = 'track_view_container';
  const viewer = document.createElement('tr-ui-timeline-view');
  viewer.track_view_container = tracks;
  Polymer.dom(viewer).appendChild(tracks);
  viewer.id = 'viewer';
  viewer.globalMode = true;
  Polymer.dom(document.body).appendChild(viewer);
  const model = new tr.Model();
  const trace = new tr.importer.Import(model);
  trace.importTraces([JSON.stringify(TRACE)]);
  viewer.model = model;
  viewer.viewTitle = 'swift_loader';
  setTimeout(() => {
    const tracks = viewer.trackView;
    const transform = new tr.ui.TimelineDisplayTransform();
    const width = tracks.viewport.modelTrackContainer.canvas.clientWidth;
    transform.xSetWorldBounds(FROM_MS, TO_MS, width);
    tracks.viewport.setDisplayTransformImmediately(transform);
    tracks.viewport.selectedFlowEvents = new Set(['swift_loader', 'swift_loader.joined']);
  }, 3000);
});
</script>"""


def view_of(trace: Path, folder: Path) -> Path:
    """A page that shows some steps out of the middle of a trace."""
    events = json.loads(trace.read_text())["traceEvents"]
    steps = [event for event in events if event.get("name") == "training step"]
    first = min(event["ts"] for event in events if "ts" in event)
    begin, end = steps[len(steps) // 2], steps[len(steps) // 2 + _STEPS]
    page = VIEW.replace("TRACE", json.dumps(events).replace("</", "<\\/"))
    page = page.replace("FROM_MS", str((begin["ts"] - first) / 1000 - 1))
    page = page.replace("TO_MS", str((end["ts"] - first) / 1000))
    for name in ("trace_viewer_full.html", "webcomponents.min.js"):
        shutil.copy(folder / name, name)
    Path("view.html").write_text(page)
    return Path("view.html").resolve()


def shoot(page: Path, picture: Path, *more: str, dark: bool = False) -> None:
    """Chromium's picture of a page."""
    flags = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    subprocess.run(
        [
            "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--window-size={WIDTH},{HEIGHT}", *flags, *more,
            f"--screenshot={picture}", page.as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )  # fmt: skip


if __name__ == "__main__":
    viewer = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the report shows the file's name as it is given
        if viewer is not None:
            traced(Path("both.json"))
            flags = ("--allow-file-access-from-files", "--virtual-time-budget=30000", SMALL)
            shoot(view_of(Path("both.json"), viewer), IMAGES / "trace.png", *flags)
            sys.exit()
        run(Path("run.jsonl"))
        if report_main(["run.jsonl", "--html", "report.html"]):
            sys.exit(1)
        for name in ("light", "dark"):
            shoot(Path("report.html").resolve(), IMAGES / f"report-{name}.png", dark=name == "dark")
