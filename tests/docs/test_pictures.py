"""The pictures of the figures are those that `benchmarks/plot.py` draws of the record."""

from __future__ import annotations

from benchmarks.picture import PANELS, recorded_rates
from benchmarks.plot import RESULTS, recorded_pictures
from tests.docs.blocks import ROOT


def test_pictures_show_what_is_recorded() -> None:
    for file, drawn in recorded_pictures().items():
        assert file.read_text() == drawn, f"{file.name}: run python -m benchmarks.plot"


def test_every_panel_has_figures_of_ours_and_of_peers() -> None:
    rates = recorded_rates(RESULTS.read_text())
    for workload in PANELS:
        assert len(rates[workload]) >= 6
        assert rates[workload]["swift_loader"] > 0


def test_readme_and_front_page_name_the_same_picture() -> None:
    readme, front = (ROOT / "README.md").read_text(), (ROOT / "docs" / "index.md").read_text()
    for file in recorded_pictures():
        assert f"docs/images/{file.name}" in readme
        assert f"images/{file.name}" in front
