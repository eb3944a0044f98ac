"""Versions, CPUs, memory and limits. Reads files and the environment; changes nothing."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import psutil

from swift_loader.doctor.finding import Finding
from swift_loader.telemetry.units import format_bytes
from swift_loader.version import __version__
from swift_loader.worker.cgroups import MEMBERSHIP, MOUNTED, group_folders, read_text
from swift_loader.worker.cpus import cpu_limits

__all__ = ["environment", "limits", "memory", "versions"]

_NEEDED = ("torch", "numpy", "dill", "loguru", "psutil")
_OPTIONAL = ("pyzmq", "msgspec", "ray", "lightning", "accelerate", "transformers", "torchdata")
_VARIABLES = (
    *("OMP_NUM_THREADS", "OMP_PROC_BIND", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("SLURM_CPUS_PER_TASK", "CUDA_VISIBLE_DEVICES", "PL_GLOBAL_SEED", "PYTHONSTARTUP"),
)
_FEW_DESCRIPTORS = 1024
_LITTLE_SHM = 1 << 27
# It is only asked how much room there is.
_SHM = "/dev/shm"  # nosec B108


def versions() -> Iterator[Finding]:
    """What is installed. A package that the loader needs and that is missing is broken."""
    yield Finding("versions", "swift_loader", __version__)
    yield Finding("versions", "Python", f"{platform.python_version()} on {platform.platform()}")
    for name in (*_NEEDED, *_OPTIONAL):
        try:
            yield Finding("versions", name, metadata.version(name))
        except metadata.PackageNotFoundError:
            if name in _NEEDED:
                advice = "swift_loader needs it: pip install " + name
                yield Finding("versions", name, "missing", advice, broken=True)


def memory() -> Iterator[Finding]:
    """Of the machine, of the control group (a container's limit), and `/dev/shm`."""
    group = "memory"
    machine = psutil.virtual_memory()
    free = f"{format_bytes(machine.total)}, {format_bytes(machine.available)} available"
    yield Finding(group, "machine", free)
    limit = _group_limit()
    if limit is None:
        yield Finding(group, "limit of the group", "none")
    else:
        yield Finding(group, "limit of the group", format_bytes(limit))
    try:
        shm = shutil.disk_usage(_SHM)
    except OSError as error:
        yield Finding(group, _SHM, f"not there ({error.strerror})")
        return
    value = f"{format_bytes(shm.total)}, {format_bytes(shm.free)} free"
    advice = ""
    if shm.free < _LITTLE_SHM:
        advice = "no matter for swift_loader, which doesn't use it; torch's own workers do"
    yield Finding(group, _SHM, value, advice)


def _group_limit() -> int | None:
    """Bytes: the least of the group's and those around it."""
    found = []
    for folder in group_folders("memory", MEMBERSHIP, MOUNTED):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = (read_text(folder / name) or "").strip()
            if text.isdigit() and int(text) < 1 << 60:  # more is how version 1 says "none"
                found.append(int(text))
    return min(found, default=None)


def limits() -> Iterator[Finding]:
    """CPUs, descriptors, processes, locked memory."""
    cpus = cpu_limits()
    yield Finding("limits", "CPUs", f"{cpus.cpus} ({cpus})")
    busy = os.getloadavg()[0]
    advice = ""
    if busy > 1.5 * cpus.cpus:
        advice = "the CPUs are busy with other work: workers get their share of them only"
    yield Finding("limits", "load of the last minute", f"{busy:.1f}", advice)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = ""
    if soft < _FEW_DESCRIPTORS:
        advice = "few: a worker takes several; raise them by `ulimit -n`"
    yield Finding("limits", "descriptors", f"{_limit(soft)} (at most {_limit(hard)})", advice)
    yield Finding("limits", "processes", _limit(resource.getrlimit(resource.RLIMIT_NPROC)[0]))
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    shown = "unlimited" if locked == resource.RLIM_INFINITY else format_bytes(locked)
    yield Finding("limits", "locked memory", shown)
    yield Finding("limits", "folder of temporary files", _temporary())


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"


def _temporary() -> str:
    folder = Path(tempfile.gettempdir())
    try:
        return f"{folder}, {format_bytes(shutil.disk_usage(folder).free)} free"
    except OSError as error:
        return f"{folder}: {error.strerror}"


def environment() -> Iterator[Finding]:
    """Variables that a loader heeds. The key's is said to be set, and its value is not shown."""
    for name in _VARIABLES:
        if name in os.environ:
            yield Finding("environment", name, os.environ[name])
    if "SWIFT_LOADER_KEY" in os.environ:
        yield Finding("environment", "SWIFT_LOADER_KEY", "set")
