from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.sharing.parties import Party, starting


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address of the test's own, in a directory where nothing may be left but its lock."""
    directory = tempfile.mkdtemp(prefix="share-")
    monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
    yield "5556"
    shutil.rmtree(directory)


@pytest.fixture
def party(port: str) -> Iterator[Callable[..., Party]]:
    with starting() as start:
        yield start


@pytest.fixture
def directory(port: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    import os

    return Path(os.environ["XDG_RUNTIME_DIR"]) / "swift_loader"
