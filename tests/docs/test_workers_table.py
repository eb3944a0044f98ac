"""The table of what reaches a worker names each setting that is carried over."""

from __future__ import annotations

from pathlib import Path

from swift_loader.worker.settings import SETTINGS


def test_each_setting_is_in_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "workers.md").read_text()
    for setting in SETTINGS:
        assert f"| {setting.name} | yes | yes | yes | yes |" in text, setting.name
