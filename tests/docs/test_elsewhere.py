"""The documents' blocks that name other machines run with endpoints, and a Ray, of this one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.blocks import LIMIT_S, ROOT, Block, blocks_of, environment, give_command, run

pytestmark = pytest.mark.timeout(3 * LIMIT_S)

_IMAGES = """
class Images:
    def __init__(self, folder): self.folder = folder
    def __len__(self): return 20
    def __getitem__(self, index): return float(index)
"""
_SEEN = "with loader:\n    assert sum(len(x) for x, _ in loader) == 101\n"


def marked(page: str, what: str) -> list[Block]:
    return [b for b in blocks_of(ROOT / "docs" / page) if b.elsewhere == what]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextmanager
def endpoint(code: str, folder: Path) -> Iterator[None]:
    """What the shell block starts, until it says that it is ready."""
    process = subprocess.Popen(
        ["sh", "-e", "-c", code],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert any(line.startswith("127.0.0.1:") for line in process.stdout)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    give_command(tmp_path)
    squares = next(
        b for b in blocks_of(ROOT / "docs/guides/elsewhere.md") if b.title == "squares.py"
    )
    (tmp_path / "squares.py").write_text(squares.code)
    return tmp_path


@pytest.mark.soak
def test_blocks_about_endpoints_run(folder: Path) -> None:
    serve, load = marked("guides/elsewhere.md", "endpoints")
    written_out, as_it_was = marked("from/rpcdataloader.md", "endpoints")
    first, second = free_port(), free_port()
    near = {"0.0.0.0:6543": f"127.0.0.1:{first}", "--workers 8": "--workers 2"}
    second_serve = f"swift-loader serve --bind tcp://127.0.0.1:{second} --key cluster.key"
    python = (
        "from squares import Squares\nfrom swift_loader import SwiftLoader\n" + load.code + _SEEN
    )
    (folder / "images.py").write_text(_IMAGES)
    images = "from images import Images\nfrom swift_loader import SwiftLoader\n"
    count = "assert sorted(x for batch in loader for x in batch.tolist()) == list(range(20))\n"
    scripts = {
        "load.py": python,
        "written_out.py": images + written_out.code + "with loader:\n    " + count,
        "as_it_was.py": "import os\nos.environ['SWIFT_LOADER_KEY'] = 'cluster.key'\n"
        + images
        + as_it_was.code
        + count,
    }
    with endpoint(_with(serve.code, near), folder), endpoint(second_serve, folder):
        for name, script in scripts.items():
            nodes = {"node01:6543": f"127.0.0.1:{first}", "node02:5432": f"127.0.0.1:{second}"}
            (folder / name).write_text(_with(script, nodes))
            run([sys.executable, name], folder, name)


@pytest.fixture
def ray_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One that a script joins by itself, and whose nodes can import what is in `folder`."""
    pytest.importorskip("ray", reason="needs Ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{folder}")  # of the nodes
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 8})
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield
    cluster.shutdown()


@pytest.mark.soak
@pytest.mark.usefixtures("ray_cluster")
def test_block_about_workers_on_ray_runs(folder: Path) -> None:
    (load,) = marked("guides/elsewhere.md", "Ray")
    head = "from squares import Squares\nfrom swift_loader import SwiftLoader\n"
    (folder / "load.py").write_text(
        head + _with(load.code, {"num_workers=16": "num_workers=2"}) + _SEEN
    )
    run([sys.executable, "load.py"], folder, "load.py")


@pytest.mark.soak
@pytest.mark.usefixtures("ray_cluster")
def test_block_about_ray_train_runs(folder: Path) -> None:
    pytest.importorskip("ray.train", reason="needs ray[train]", exc_type=ImportError)
    (train,) = marked("guides/ranks.md", "Ray")
    assert train.title is not None
    (folder / train.title).write_text(train.code)
    run([sys.executable, train.title], folder, train.title)


def _with(code: str, changes: dict[str, str]) -> str:
    for there, here in changes.items():
        assert there in code or there.startswith("node")
        code = code.replace(there, here)
    return code
