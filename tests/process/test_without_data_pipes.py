"""A torch that has dropped its data pipes feeds every other data set as before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.process.scripts import ROOT, environment

# Runs at the start of every Python process that has it on its path.
DROPPED = """
import sys
from importlib.machinery import PathFinder

class Dropped:
    def find_spec(self, name, path=None, target=None):
        if name != "torch.utils.data":
            return None
        spec = PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def without_pipes(module):
            run(module)
            kinds = "IterDataPipe", "MapDataPipe", "DFIterDataPipe"
            for gone in (*kinds, "graph", "graph_settings"):
                delattr(module, gone)
            for name in list(sys.modules):
                if name.startswith(("torch.utils.data.datapipes", "torch.utils.data.graph")):
                    sys.modules[name] = None
        spec.loader.exec_module = without_pipes
        return spec

sys.meta_path.insert(0, Dropped())
"""

SCRIPT = """
import torch.utils.data
from torch.utils.data import IterableDataset
from swift_loader import SwiftLoader

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))

if __name__ == "__main__":
    assert not hasattr(torch.utils.data, "IterDataPipe")
    for dataset in (list(range(10)), Stream()):
        with SwiftLoader.from_dataset(dataset, 4, worker_per_consumer=2) as loader:
            assert sorted(int(i) for batch in loader for i in batch) == list(range(10))
"""


def test_plain_data_sets_and_streams_are_fed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(DROPPED)
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        env={**environment(), "PYTHONPATH": path},
        check=True,
        timeout=60,
    )
