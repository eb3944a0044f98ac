"""What a process finds around it: environment, working directory, search path, arguments, settings.

A worker finds what the training process had when it started the worker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swift_loader.worker.settings import apply_settings, read_settings

__all__ = ["Surroundings", "importable_path", "working_directory"]


@dataclass(frozen=True)
class Surroundings:
    """Those of one process. Of a working directory that is gone, `cwd` is None."""

    environ: dict[str, str]
    cwd: str | None
    sys_path: list[Any]
    argv: list[str]
    settings: Mapping[str, bytes] = field(repr=False)

    @classmethod
    def here(cls) -> Surroundings:
        """Those of this process, now."""
        return cls(
            dict(os.environ),
            working_directory(),
            search_path(),
            list(map(str, sys.argv)),
            read_settings(),
        )

    def enter(self) -> None:
        """Make them those of this process."""
        os.environ.clear()
        os.environ.update(self.environ)
        if self.cwd is not None and self.cwd != working_directory():
            os.chdir(self.cwd)
        sys.path[:] = self.sys_path
        sys.argv[:] = self.argv
        apply_settings(self.settings)


def search_path() -> list[Any]:
    """`sys.path` for another process: the empty entry means this working directory."""
    cwd = working_directory()
    own = [cwd if path in ("", b"") else path for path in sys.path]
    return [path for path in own if isinstance(path, (str, bytes, os.PathLike))]


def importable_path() -> list[str]:
    """The entries of `search_path` that Python imports from. Some libraries want no bytes there."""
    return [os.fsdecode(path) for path in search_path() if isinstance(path, (str, bytes))]


def working_directory() -> str | None:
    """Of this process; None where it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None
