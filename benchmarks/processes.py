"""This process and everything that it started: memory, CPU, descriptors."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class ProcessUse:
    """What one process holds and has used so far."""

    pid: int
    what: str
    pss_bytes: int
    cpu_s: float
    nb_descriptors: int
    nb_threads: int


def all_processes() -> list[ProcessUse]:
    """This process first, then its descendants. One that ends meanwhile is left out."""
    here = psutil.Process()
    uses: list[ProcessUse] = []
    for process in [here, *here.children(recursive=True)]:
        try:
            times = process.cpu_times()
            uses.append(
                ProcessUse(
                    process.pid,
                    "training" if process == here else f"child {len(uses)}",
                    _pss_bytes(process.pid),
                    times.user + times.system,
                    process.num_fds(),
                    process.num_threads(),
                )
            )
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            continue
    return uses


def cpu_s_by_process() -> dict[int, float]:
    """By process, this one first, then its descendants: the CPU seconds that it has used so far."""
    here = psutil.Process()
    used: dict[int, float] = {}
    for process in [here, *here.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used[process.pid] = times.user + times.system
    return used


def _pss_bytes(pid: int) -> int:
    """Proportional set size: a page shared by k processes counts 1/k in each."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def total_pss_bytes() -> int:
    """Memory of all processes together, shared pages counted once."""
    return sum(use.pss_bytes for use in all_processes())


def total_descriptors() -> int:
    """Open descriptors of all processes together."""
    return sum(use.nb_descriptors for use in all_processes())
