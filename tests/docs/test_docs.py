"""Every block of code in the documents runs, and the site builds.

A page is run in a folder of its own: blocks with a title are written as files of that name, the
other Python blocks are one script, then each shell block is run. A block that can't run here says
why, in a comment ``<!-- not run: ... -->`` above it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
LIMIT_S = 100

_FENCE = re.compile(
    r"(?:<!-- not run: (?P<why>[^>]+) -->\n)?"
    r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    line: int
    language: str
    title: str | None
    why_not: str | None
    code: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            text[: found.start("language")].count("\n") + 1,
            found["language"],
            found["title"],
            found["why"],
            found["code"],
        )
        for found in _FENCE.finditer(text)
    ]


def run(command: list[str], folder: Path, what: str) -> None:
    bin_folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{folder / 'bin'}:{bin_folder}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, f"{what}:\n{done.stdout}\n{done.stderr}"


def give_command(folder: Path) -> None:
    """`swift-loader` as this checkout has it, installed or not."""
    command = folder / "bin" / "swift-loader"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m swift_loader.cli "$@"\n')
    command.chmod(0o755)


def test_every_fence_is_understood() -> None:
    for page in PAGES:
        assert page.read_text().count("\n```") == 2 * len(blocks_of(page)), page.name
        known = {"python", "sh", "text"}
        assert {block.language for block in blocks_of(page)} <= known, page.name


@pytest.mark.timeout(4 * LIMIT_S)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(page) if block.why_not is None]
    for needed in re.findall(r"(?:import|from) (lightning|accelerate)\b", page.read_text()):
        pytest.importorskip(needed, reason=f"the page shows {needed}")
    script = []
    for block in blocks:
        if block.language == "python" and block.title:
            (tmp_path / block.title).write_text(block.code)
        elif block.language == "python":
            script.append(f"# {page.name}, line {block.line}\n{block.code}")
    if script:
        (tmp_path / "page.py").write_text("\n".join(script))
        run([sys.executable, "page.py"], tmp_path, page.name)
    give_command(tmp_path)
    for block in blocks:
        if block.language == "sh":
            run(["sh", "-e", "-c", block.code], tmp_path, f"{page.name}, line {block.line}")


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="needs mkdocs-material")
    run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site"),
         "--config-file", str(ROOT / "mkdocs.yml")],
        ROOT,
        "mkdocs build",
    )  # fmt: skip
    front = (tmp_path / "site" / "index.html").read_text()
    assert "Quick start" in front
    options = (tmp_path / "site" / "options" / "index.html").read_text()
    assert "nearby_shuffle" in options
    flow = (tmp_path / "site" / "how" / "index.html").read_text()
    assert "dispatch: which worker" in flow
