"""How many CPUs this process may really use: what is in the machine is often not what one gets.

A container has a quota, a batch system binds and allots, and `os.cpu_count` knows of none of that.
Reads files and the environment; starts and changes nothing.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swift_loader.worker.cgroups import MEMBERSHIP, MOUNTED, group_folders, read_text

__all__ = ["CpuLimits", "available_cpus", "cpu_limits", "unbinding", "usable_cpus"]


_OPENMP = re.compile(r"/lib[gi]?omp\d*[-.][^/]*$")  # GNU's, and LLVM's or Intel's


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


def usable_cpus() -> frozenset[int]:
    """The CPUs that workers of this process may run on; empty where the system can't tell.

    That is the mask of this process, except where OpenMP has bound its main thread to a part of
    that (``OMP_PROC_BIND``): OpenMP's places then tell what the mask was, for a worker that
    inherited the part would share one CPU with all others.
    """
    if not hasattr(os, "sched_getaffinity"):
        return frozenset()
    return frozenset(os.sched_getaffinity(0)).union(*_openmp_places())


def unbinding() -> tuple[tuple[int, ...], ...]:
    """The affinity that frees workers of what OpenMP has bound this process to; empty: nothing."""
    usable = usable_cpus()
    if not usable or usable == os.sched_getaffinity(0):
        return ()
    return (tuple(sorted(usable)),)


def _openmp_places() -> list[set[int]]:
    """The sets of CPUs to which OpenMP binds threads; none where it binds nothing.

    Asked of the library that torch has loaded, by functions that OpenMP has had since 4.5.
    """
    libraries = {
        line.split()[-1]
        for line in (read_text(Path("/proc/self/maps")) or "").splitlines()
        if _OPENMP.search(line)
    }
    places = []
    for library in map(ctypes.CDLL, sorted(libraries)):
        if library.omp_get_proc_bind() == 0:
            continue
        for place in range(library.omp_get_num_places()):
            cpus = (ctypes.c_int * library.omp_get_place_num_procs(place))()
            library.omp_get_place_proc_ids(place, cpus)
            places.append(set(cpus))
    return places


def available_cpus() -> int:
    """Whole CPUs that this process and its workers may count on, 1 or more."""
    return cpu_limits().cpus


def cpu_limits(
    environ: Mapping[str, str] = os.environ,
    membership: Path = MEMBERSHIP,
    mounted: Path = MOUNTED,
) -> CpuLimits:
    """All limits that hold for this process now.

    `membership` names its control groups, `mounted` is where their files stand.
    """
    usable = usable_cpus()
    return CpuLimits(
        machine=os.cpu_count() or 1,
        affinity=len(usable) or None,
        quota_cpus=_quota_cpus(membership, mounted),
        slurm_cpus=_positive(environ.get("SLURM_CPUS_PER_TASK")),
        nb_processes=_positive(environ.get("LOCAL_WORLD_SIZE")) or 1,
    )


def _quota_cpus(membership: Path, mounted: Path) -> float | None:
    """The smallest quota on the way up from this process's control group."""
    folders = group_folders("cpu", membership, mounted)
    return min((quota for at in folders if (quota := _quota(at)) is not None), default=None)


def _quota(folder: Path) -> float | None:
    """CPU seconds a second: ``cpu.max`` holds quota and period, version 1 has a file for each."""
    words = (read_text(folder / "cpu.max") or "").split()
    if len(words) != 2:
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [read_text(folder / file) or "" for file in files]
    quota_us, period_us = (_positive(word) for word in words)  # "max" and -1: none
    return quota_us / period_us if quota_us and period_us else None


def _positive(text: str | None) -> int | None:
    try:
        number = int(text or "")
    except ValueError:
        return None
    return number if number > 0 else None
