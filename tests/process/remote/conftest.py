"""Keys and endpoints for the tests of remote workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("zmq")

from swift_loader.remote.keys import Keys
from tests.process.remote.endpoints import RunningEndpoint


@pytest.fixture(scope="session")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("keys") / "cluster.key"
    Keys.generate().write(path)
    return path


@pytest.fixture(scope="module")
def endpoint(key_file: Path) -> Iterator[RunningEndpoint]:
    """One that lives as long as the module's tests."""
    with RunningEndpoint(workers=2, key=key_file) as running:
        yield running
