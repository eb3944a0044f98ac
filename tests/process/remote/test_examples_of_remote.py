"""The example of endpoints runs as it is, and the script for Slurm can be read."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.process.scripts import ROOT, environment

pytestmark = pytest.mark.skipif(
    find_spec("sklearn") is None, reason="needs the requirements of the examples"
)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_example_trains_on_endpoints_beside_local_workers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "remote_digits.py")],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("session 1 ends after") == 2
    assert not list(tmp_path.iterdir())


def test_slurm_script_is_a_script() -> None:
    script = ROOT / "examples" / "deploy" / "slurm_heterogeneous.sh"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
