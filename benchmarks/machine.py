"""What a result depends on: the machine, the versions, and who else kept it busy."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

_PACKAGES = ["swift-loader", "torch", "numpy", "torchdata", "spdl", "grain", "pillow"]
_BUSY_SHARE = 0.1  # of all cores, used by others before we start, that spoils a result


def describe() -> dict[str, Any]:
    """The machine and the versions, as plain data."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "nb_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "versions": {package: _version(package) for package in _PACKAGES},
    }


def _processor() -> str:
    with open("/proc/cpuinfo") as lines:
        return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def others_share() -> float:
    """The part of all cores that is in use now, before anything of ours runs; takes a second."""
    return float(psutil.cpu_percent(interval=1.0)) / 100


def warning(share: float) -> str:
    """What to say about a machine that others use; nothing where they don't."""
    if share < _BUSY_SHARE:
        return ""
    return (
        f"WARNING: others use {share:.0%} of this machine. Absolute figures will be low, spreads "
        "wide, and ratios biased against whoever needs both cores."
    )
