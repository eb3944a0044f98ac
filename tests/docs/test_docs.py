"""Every block of code in the documents runs, and the site builds. See `blocks` for how."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import LIMIT_S, PAGES, ROOT, blocks_of, give_command, run

# Of all loaders of a page: else each would import torch anew, one after the other.
ONE_ZYGOTE = "from swift_loader.worker.launch import Zygote\nzygote = Zygote.acquire()\n"


def test_every_fence_is_understood() -> None:
    for page in PAGES:
        assert page.read_text().count("\n```") == 2 * len(blocks_of(page)), page.name
        known = {"python", "sh", "text"}
        assert {block.language for block in blocks_of(page)} <= known, page.name


@pytest.mark.timeout(4 * LIMIT_S)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    blocks = [b for b in blocks_of(page) if b.why_not is None and b.elsewhere is None]
    for needed in re.findall(r"(?:import|from) (lightning|accelerate)\b", page.read_text()):
        pytest.importorskip(needed, reason=f"the page shows {needed}")
    script = []
    for block in blocks:
        if block.language == "python" and block.title:
            (tmp_path / block.title).write_text(block.code)
        elif block.language == "python":
            script.append(f"# {page.name}, line {block.line}\n{block.code}")
    if script:
        (tmp_path / "page.py").write_text("\n".join([ONE_ZYGOTE, *script]))
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


def test_the_architecture_page_names_what_there_is_and_every_folder() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "swift_loader"
    to_come = {"cache/"}
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py)`", text)) - to_come
    for name in named:
        found = (package / name).exists() or (ROOT / name).exists()
        assert found or any(package.rglob(name)), name
    folders = {path.name for path in package.iterdir() if any(path.glob("*.py"))}
    assert folders <= {name.split("/")[0] for name in named}
