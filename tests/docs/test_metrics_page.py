"""The page of figures, and the dashboard, name what there is."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from swift_loader.telemetry.figures import FIGURES
from tests.docs.blocks import ROOT, environment


def test_the_page_has_the_table_of_now(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/metrics_table.py"],
        cwd=ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_the_dashboard_asks_for_figures_that_there_are() -> None:
    dashboard = json.loads((ROOT / "examples" / "deploy" / "grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(asked) >= 8
    named = {name for expression in asked for name in re.findall(r"swift_loader_\w+", expression)}
    assert named <= set(FIGURES)
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    for i, a in enumerate(places):  # no panel lies over another one
        for b in places[:i]:
            apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
            assert apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
