"""The documents are spelled right, and keep proselint's rules for prose and the project's own.

The latter, and what of proselint is left out, are in `tests.docs.words`.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT
from tests.docs.words import NOT_OURS, RULES, prose, sentences, too_long


def test_code_and_documents_are_spelled_right() -> None:
    if importlib.util.find_spec("codespell_lib") is None:
        pytest.skip("needs codespell")
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *_checked()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _checked() -> list[str]:
    """What is ours; the list of words that codespell does not know is in pyproject.toml."""
    names = ["benchmarks", "docs", "examples", "scripts", "swift_loader", "tests"]
    return [*names, *(path.name for path in ROOT.glob("*.md")), "pyproject.toml"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_keeps_the_rules(page: Path) -> None:
    wrong = []
    for sentence in sentences(page.read_text()):
        wrong += [f"{sentence}\n  → {r.instead}" for r in RULES if r.pattern.search(sentence)]
        if too_long(sentence):
            wrong.append(f"{sentence}\n  → two sentences")
    assert not wrong, "\n".join(wrong)


def test_prose_keeps_the_rules_of_proselint() -> None:
    pytest.importorskip("proselint", reason="needs proselint")
    from proselint.checks import __register__
    from proselint.config import DEFAULT
    from proselint.registry import CheckRegistry
    from proselint.tools import LintFile

    CheckRegistry().register_many(__register__)
    checks = DEFAULT["checks"] | dict.fromkeys(NOT_OURS, False)
    wrong = []
    for page in [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md"))]:
        text = prose(page.read_text()) + "\n"  # some pages are a table and no more
        for found in LintFile(page.name, text).lint(DEFAULT | {"checks": checks}):
            line = text.splitlines()[found.pos[0] - 1]
            wrong.append(f"{page.name}: {line}\n  → {found.check_result.message}")
    assert not wrong, "\n".join(wrong)
