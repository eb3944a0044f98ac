"""Which versions on both sides work together. Pure."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib import metadata

import numpy as np

from swift_loader.version import __version__

__all__ = ["here", "what_differs"]

# How much of a version must be equal: the code of classes travels as byte code, which changes with
# Python's minor version; random draws in datasets, and pickles of torch's objects, with torch's;
# numpy's pickles with its major version; the encoding of batches with ours.
_PARTS = {"python": 2, "torch": 2, "numpy": 1, "swift_loader": 3, "byte order": 1}


def here() -> dict[str, str]:
    """The versions in this process."""
    return {
        "python": platform.python_version(),
        "torch": _torch_version(),
        "numpy": np.__version__,
        "swift_loader": __version__,
        "byte order": sys.byteorder,
    }


def what_differs(endpoint: Mapping[str, str], training: Mapping[str, str]) -> str:
    """What can't work together, for a reader; empty if all can."""
    differing = []
    for name, parts in _PARTS.items():
        there, mine = endpoint.get(name, "?"), training.get(name, "?")
        if _head(there, parts) != _head(mine, parts):
            differing.append(f"{name} is {there} on the endpoint and {mine} in training")
    return "; ".join(differing)


def _head(version: str, parts: int) -> list[str]:
    return version.partition("+")[0].split(".")[:parts]


def _torch_version() -> str:
    try:
        return metadata.version("torch")  # to import it takes seconds
    except metadata.PackageNotFoundError:  # built, and not installed
        import torch

        return torch.__version__
