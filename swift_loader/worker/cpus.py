"""How many CPUs this process may really use: what is in the machine is often not what one gets.

A container has a quota, a batch system binds and allots, and `os.cpu_count` knows of none of that.
Reads files and the environment; starts and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CpuLimits", "available_cpus", "cpu_limits"]


@dataclass(frozen=True)
class CpuLimits:
    """Each limit as it was found; None: there is none of this kind."""

    machine: int
    affinity: int | None  # CPUs that this process may be scheduled on
    quota_cpus: float | None  # CPU seconds a second, of its control group (a container's limit)
    slurm_cpus: int | None  # `SLURM_CPUS_PER_TASK`
    nb_processes: int  # `LOCAL_WORLD_SIZE`: training processes that share all this

    @property
    def cpus(self) -> int:
        """Whole CPUs that this process and its workers may count on, 1 or more."""
        limits = [
            float(limit)
            for limit in (self.machine, self.affinity, self.quota_cpus, self.slurm_cpus)
            if limit is not None
        ]
        return max(1, int(min(limits) / self.nb_processes))

    def __str__(self) -> str:
        found = [f"{self.machine} in the machine"]
        if self.affinity is not None and self.affinity != self.machine:
            found.append(f"{self.affinity} by affinity")
        if self.quota_cpus is not None:
            found.append(f"{self.quota_cpus:.3g} by the container's quota")
        if self.slurm_cpus is not None:
            found.append(f"{self.slurm_cpus} by Slurm")
        if self.nb_processes > 1:
            found.append(f"shared by {self.nb_processes} training processes")
        return ", ".join(found)


def available_cpus() -> int:
    """Whole CPUs that this process and its workers may count on, 1 or more."""
    return cpu_limits().cpus


def cpu_limits(
    environ: Mapping[str, str] = os.environ,
    proc: Path = Path("/proc/self/cgroup"),
    mounted_at: Path = Path("/sys/fs/cgroup"),
) -> CpuLimits:
    """All limits that hold for this process now.

    `proc` names its control groups, `mounted_at` is where their files stand.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    return CpuLimits(
        machine=os.cpu_count() or 1,
        affinity=len(affinity(0)) if affinity else None,
        quota_cpus=_quota_cpus(proc, mounted_at),
        slurm_cpus=_positive(environ.get("SLURM_CPUS_PER_TASK")),
        nb_processes=_positive(environ.get("LOCAL_WORLD_SIZE")) or 1,
    )


def _quota_cpus(proc: Path, mounted_at: Path) -> float | None:
    """The smallest quota on the way up from this process's control group."""
    quotas: list[float] = []
    for line in (_read(proc) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2: one hierarchy for all
            quotas += _quotas(mounted_at, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            quotas += _quotas(mounted_at / "cpu", path, _quota_v1)
    return min(quotas, default=None)


def _quotas(root: Path, path: str, quota_of: Callable[[Path], float | None]) -> list[float]:
    # In a container the path may be that of the host, and not be there; the root always is.
    folder = root / path.strip("/")
    folders = [folder, *folder.parents]
    inside = folders[: folders.index(root) + 1] if root in folders else [root]
    return [quota for at in inside if (quota := quota_of(at)) is not None]


def _quota_v2(folder: Path) -> float | None:
    """``cpu.max`` holds "quota period" in microseconds, or "max period"."""
    words = (_read(folder / "cpu.max") or "").split()
    if len(words) != 2 or words[0] == "max":
        return None
    return int(words[0]) / int(words[1])


def _quota_v1(folder: Path) -> float | None:
    quota_us = _positive(_read(folder / "cpu.cfs_quota_us"))  # -1: none
    period_us = _positive(_read(folder / "cpu.cfs_period_us"))
    return quota_us / period_us if quota_us and period_us else None


def _positive(text: str | None) -> int | None:
    try:
        number = int(text or "")
    except ValueError:
        return None
    return number if number > 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
