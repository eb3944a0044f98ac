"""pyright reads a user's script as it is meant; mypy does so with the package (pyproject.toml)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "script.py"


@pytest.mark.skipif(
    find_spec("pyright") is None or shutil.which("node") is None, reason="needs pyright and node"
)
def test_pyright_knows_what_a_loader_gives(tmp_path: Path) -> None:
    settings = {
        "include": ["script.py"],
        "extraPaths": [str(ROOT)],
        "reportUnnecessaryTypeIgnoreComment": True,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    shutil.copy(SCRIPT, tmp_path / "script.py")
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
