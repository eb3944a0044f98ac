"""The blocks of code in the documents, and how they are run.

A page is run in a folder of its own: blocks with a title are written as files of that name, the
other Python blocks are one script, then each shell block is run. A comment above a block says
otherwise: ``<!-- not run: why -->``, or ``<!-- elsewhere: what -->`` for those that name other
machines, which have a test of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LIMIT_S = 300

_FENCE = re.compile(
    r"(?:<!-- (?P<mark>not run|elsewhere): (?P<why>[^>]+) -->\n)?"
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
    elsewhere: str | None
    code: str

    @property
    def runs(self) -> bool:
        """Here, as it stands."""
        return self.why_not is None and self.elsewhere is None


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            text[: found.start("language")].count("\n") + 1,
            found["language"],
            found["title"],
            found["why"] if found["mark"] == "not run" else None,
            found["why"] if found["mark"] == "elsewhere" else None,
            found["code"],
        )
        for found in _FENCE.finditer(text)
    ]


def write_scripts(page: Path, folder: Path, name: str = "page.py") -> bool:
    """Blocks with a title become files, the other Python blocks one script: is there one?"""
    script = []
    for block in blocks_of(page):
        if block.language != "python" or not block.runs:
            continue
        if block.title:
            (folder / block.title).write_text(block.code)
        else:
            script.append(f"# {page.name}, line {block.line}\n{block.code}")
    if script:
        (folder / name).write_text("\n".join(script))
    return bool(script)


def environment(folder: Path) -> dict[str, str]:
    """`swift-loader` and the package are those of this checkout."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }


def run(command: list[str], folder: Path, what: str) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, f"{what}:\n{done.stdout}\n{done.stderr}"


def give_command(folder: Path) -> None:
    """`swift-loader` as this checkout has it, installed or not."""
    command = folder / "bin" / "swift-loader"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m swift_loader.cli "$@"\n')
    command.chmod(0o755)
