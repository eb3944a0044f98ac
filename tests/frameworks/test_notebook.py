"""Notebooks: the example runs; classes defined in cells; a cell that runs again leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    None in map(find_spec, ("nbformat", "nbconvert", "ipykernel")),
    reason="needs Jupyter's nbformat, nbconvert and ipykernel",
)

ROOT = Path(__file__).parents[2]
LIMIT_S = 100

_COUNT = """
import time
import psutil

def nb_processes():
    return sum("swift_loader" in " ".join(p.cmdline()) for p in psutil.Process().children(True)
               if p.status() != psutil.STATUS_ZOMBIE)
"""
_WAIT = """
deadline_s = time.monotonic() + 10
while nb_processes() > {most} and time.monotonic() < deadline_s:
    time.sleep(0.05)
print("left", nb_processes())
"""


def execute(folder: Path, cells: list[str]) -> str:
    """What the cells print."""
    import nbformat

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(book, folder / "book.ipynb")
    return run(folder / "book.ipynb", folder)


def run(book: Path, folder: Path) -> str:
    convert = [sys.executable, "-m", "jupyter", "nbconvert", "--execute", "--to", "notebook"]
    subprocess.run(
        [*convert, str(book), "--output-dir", str(folder), "--output", "done.ipynb"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder)},
        check=True,
        timeout=LIMIT_S,
        cwd=folder,
    )
    import nbformat

    done = nbformat.read(folder / "done.ipynb", as_version=4)
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    return "".join(
        output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs
    )


@pytest.mark.soak
def test_example_runs(tmp_path: Path) -> None:
    printed = run(ROOT / "examples" / "notebook.ipynb", tmp_path)
    assert "epoch 2: loss" in printed
    assert "swift_loader, consumer 0" in printed


def test_cell_that_runs_again_leaves_no_processes(tmp_path: Path) -> None:
    define = """
class Squares:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return index * index
"""
    loop = """
from swift_loader import SwiftLoader
loader = SwiftLoader(Squares, batch_size=4, worker_per_consumer=2)
for batch in loader:
    pass
print("last", batch.tolist())
"""
    most = _WAIT.format(most=4)  # two workers, what forks them, and one more for the moment
    end = _WAIT.format(most=1)  # what forks workers stays for the next loader
    cells = [_COUNT, define, *[loop] * 5, most, "loader.close()", end]
    printed = execute(tmp_path, cells)
    assert printed.count("last [1296, 1369, 1444, 1521]") == 5
    left = [int(line.split()[1]) for line in printed.splitlines() if line.startswith("left")]
    assert left[0] <= 4, printed
    assert left[1] == 1, printed
