"""What the script has set reaches its workers, by each `start_method` as its documentation says."""

from __future__ import annotations

import gc
import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_loader import ConfigError, SwiftLoader
from tests import datasets
from tests.process.scripts import ROOT, environment, kill_family

SETTINGS = "size = 32\nregistry = {}\n"

SCRIPT = """
import json, os, sys, threading
from dataclasses import dataclass
import numpy as np
import torch
from torch.utils.data._utils.collate import default_collate_fn_map
from swift_loader import SwiftLoader
{imports}

settings.size = 64
np.seterr(divide="ignore")
imported_by = os.getpid()
names = list({{f"name {{i}}" for i in range(15)}})
in_order = sorted(names)


class Base:
    def __init_subclass__(cls, key="child", **kwargs):
        super().__init_subclass__(**kwargs)
        if key in settings.registry:
            raise ValueError(f"{{key}} is registered twice")
        settings.registry[key] = cls


class Child(Base):
    def name(self):
        return super().__repr__()[:1] + type(self).__name__


@dataclass
class Box:
    n: int


def boxes(batch, *, collate_fn_map=None):
    return [f"box {{box.n}}" for box in batch]


default_collate_fn_map[Box] = boxes


class Point(dict):
    pass


class Data:
    def __init__(self, size):
        self.built_in, self.size = os.getpid(), size
        self.lock = threading.Lock() if size == 6 else None

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return Point(size=settings.size, box=Box(i), child=Child().name(), pid=os.getpid(),
                     imported_by=imported_by, parent=os.getppid())


def collate(points):
    return Point(points=points)


def run(method, build):
    options = {{"batch_size": 2, "worker_per_consumer": 2, "start_method": method, **build()}}
    with SwiftLoader(**options) as loader:
        first = list(loader)
        again = list(loader)
    assert sum(len(b) for b in first) == sum(len(b) for b in again)
    return first


{guard}
    method = sys.argv[1]
    plain = run(method, lambda: dict(dataset_class=Data, dataset_kwargs=dict(size=4)))
    data = Data(4)
    own = run(method, lambda: dict(dataset_class=data, collate_fn=collate))
    points = [point for batch in own for point in batch["points"]]
    local = type("Local", (Data,), {{}})
    assert len(run(method, lambda: dict(dataset_class=local, dataset_kwargs=dict(size=4)))) == 2
    if method == "fork":
        assert len(run(method, lambda: dict(dataset_class=Data(6)))) == 3
    print(json.dumps({{
        "size": plain[0]["size"].tolist(),
        "box": plain[0]["box"] if isinstance(plain[0]["box"], list) else "not mine",
        "child": plain[0]["child"],
        "classes": all(type(point) is Point and type(point["box"]) is Box for point in points),
        "imports": len({{point["imported_by"] for point in points}} - {{os.getpid()}}),
        "here": os.getpid() in {{point["imported_by"] for point in points}},
        "registry": [kind is Child for kind in settings.registry.values()],
    }}))
"""
GUARD = 'if __name__ == "__main__":'


def run(
    folder: Path, method: str, *, guard: str = GUARD, package: bool = False
) -> tuple[dict[str, Any], str]:
    """What the script prints, run by its file or by ``-m``; and what it wrote to stderr."""
    target = folder / "pkg" if package else folder
    target.mkdir(exist_ok=True)
    (target / "settings.py").write_text(SETTINGS)
    imports = "from . import settings" if package else "import settings"
    (target / "mod.py").write_text(SCRIPT.format(imports=imports, guard=guard))
    command = ["-m", "pkg.mod"] if package else [str(target / "mod.py")]
    process = subprocess.Popen(
        [sys.executable, *command, method],
        cwd=folder,
        env={**environment(), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=100)
    finally:
        kill_family(process.pid)
    assert process.returncode == 0, err
    return json.loads(out), err


@pytest.mark.parametrize(
    ("method", "guard", "package"),
    [
        ("auto", GUARD, False),
        pytest.param("main", GUARD, True, marks=pytest.mark.soak),
        pytest.param("fork", GUARD, False, marks=pytest.mark.soak),
        ("fork", "if True:", True),
    ],
)
def test_everything_that_the_script_set_is_there(
    tmp_path: Path, method: str, guard: str, package: bool
) -> None:
    found, err = run(tmp_path, method, guard=guard, package=package)
    assert found["size"] == [64, 64]
    assert found["box"] == ["box 0", "box 1"]
    assert found["child"] == ["<Child"] * 2
    assert found["classes"]
    assert found["registry"] == [True]
    assert found["here"] == (method == "fork")
    assert found["imports"] == (method != "fork")  # once for all workers and loaders
    assert ("RuntimeWarning: names: in another order in the workers" in err) == (method != "fork")


def test_fresh_workers_never_see_the_script(tmp_path: Path) -> None:
    found, _ = run(tmp_path, "auto", guard="if True:")
    assert found["size"] == [32, 32]
    assert found["box"] == "not mine"


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the script starts workers while it is imported"):
        run(tmp_path, "main", guard="if True:")


class Collected:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> bool:
        return gc.isenabled()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.filterwarnings("ignore:start_method='fork'")
@pytest.mark.parametrize("method", ["fresh", "fork"])
def test_workers_collect_garbage(method: str) -> None:
    """The process that they descend from imports without."""
    with SwiftLoader(Collected(), batch_size=2, start_method=method) as loader:
        assert [batch.tolist() for batch in loader] == [[True, True]]


@pytest.mark.usefixtures("nothing_left")
def test_a_fork_is_refused_with_cuda_and_warned_of_with_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="of the script")
    thread.start()
    try:
        with (
            pytest.warns(UserWarning, match="of the script"),
            SwiftLoader(datasets.Numbers, {"n": 4}, start_method="fork", validate=False) as loader,
        ):
            assert len(list(loader)) == 4
    finally:
        stop.set()
        thread.join()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with (
        SwiftLoader(datasets.Numbers, {"n": 4}, start_method="fork", validate=False) as loader,
        pytest.raises(ConfigError, match="initialised CUDA"),
    ):
        loader.start(0)
    with pytest.raises(ConfigError, match="remote_workers are not forked"):
        SwiftLoader(
            datasets.Numbers,
            {"n": 4},
            start_method="fork",
            remote_workers="tcp://x:1",
            remote_key=False,
        )


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.filterwarnings("ignore:start_method='fork'")
def test_a_fork_of_a_process_whose_streams_have_no_descriptor_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.StringIO())
    with SwiftLoader(list(range(8)), batch_size=4, start_method="fork") as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
