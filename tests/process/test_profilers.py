"""What profilers see of a loader, and the loader's trace joined with torch's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from swift_loader import SwiftLoader
from swift_loader.cli import main
from tests import datasets

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_torchs_profiler_shows_where_batches_are_waited_for() -> None:
    with SwiftLoader(datasets.Numbers, {"n": 32}, 4) as loader:
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            assert sum(1 for _ in loader) == 8
    waits = [event for event in seen.events() if event.name == "swift_loader.wait"]
    assert len(waits) == 8 + 1  # and for the end


def test_a_trace_joins_with_torchs_own_and_arrows_lead_to_the_step(tmp_path: Path) -> None:
    ours, theirs, both = (str(tmp_path / name) for name in ("run.json", "torch.json", "both.json"))
    with SwiftLoader(datasets.Uneven, {"n": 32}, 4, trace_file=ours) as loader:
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            for rows, _ in loader:
                torch.mm(torch.ones(64, 64), torch.ones(64, 64)).sum() + rows.sum()
    seen.export_chrome_trace(theirs)
    assert main(["trace", ours, theirs, "--out", both]) == 0
    events = json.loads(Path(both).read_text())["traceEvents"]
    ranges = [e for e in events if e.get("name") == "swift_loader.wait" and e["ph"] == "X"]
    waits = {e["args"]["batch"]: e for e in events if e.get("name") == "wait"}
    assert len(ranges) == 9
    assert len(waits) == 8
    # The same waits, on one clock, whichever file they come from.
    for mine, torchs in zip(sorted(waits.values(), key=lambda e: e["ts"]), ranges, strict=False):
        assert mine["ts"] == pytest.approx(torchs["ts"], abs=5000)
    # Each batch's arrow begins in the span of its worker and ends in that of the loop.
    spans = [e for e in events if e.get("cat") == "swift_loader" and e["ph"] == "X"]
    flows = [e for e in events if e.get("cat") == "swift_loader" and e["ph"] in "stf"]
    assert len(flows) == 3 * 8
    for flow in flows:
        [_, *_] = [
            span
            for span in spans
            if (span["pid"], span["tid"]) == (flow["pid"], flow["tid"])
            and span["ts"] - 0.01 <= flow["ts"] <= span["ts"] + span["dur"] + 0.01
        ]
    by_id: dict[str, list[float]] = {}
    for flow in flows:
        by_id.setdefault(flow["id"], []).append(flow["ts"])
    assert all(times == sorted(times) for times in by_id.values())
    joined = [e for e in events if e.get("cat") == "swift_loader.joined"]
    assert len(joined) >= 2 * 7
    ends = {(e["pid"], e["tid"]) for e in joined if e["ph"] == "f"}
    assert ends == {(ranges[0]["pid"], ranges[0]["tid"])}


def test_files_that_are_no_traces_end_the_command_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text("[1, 2]")
    assert main(["trace", str(other), str(other), "--out", str(tmp_path / "both.json")]) == 1
    told = capsys.readouterr().err
    assert "trace_file" in told
    assert told.count("\n") == 1
