"""What one worker has done, and what its process uses: psutil is asked when somebody wants it."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

from swift_loader.telemetry.stats import WorkerStats

__all__ = ["WorkerRow", "cpu_wait_s"]


def cpu_wait_s(pid: int) -> float | None:
    """How long the threads of a process were ready to run and had no CPU; None: nobody says.

    The second number of ``/proc/PID/task/TID/schedstat`` (Linux, ``sched-stats.rst``).
    """
    total_ns = 0
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        for thread in threads:
            with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                total_ns += int(file.read().split()[1])
    except (OSError, IndexError, ValueError):  # it ended, or this is no Linux
        return None
    return total_ns / 1e9


class WorkerRow:
    """One worker over all the processes that it has been. `Meter` counts into it."""

    __slots__ = (
        "_before", "_cpu_s", "_cpu_wait_s", "_process", "batches", "busy_s", "mark_s", "pid",
        "restarts", "running",
    )  # fmt: skip

    def __init__(self) -> None:
        self.batches = 0
        self.busy_s = 0.0
        self.restarts = 0
        self.running = False
        self.pid: int | None = None
        self._process: psutil.Process | None = None
        # CPU time, and waiting for a CPU: of the process that runs now, when last looked at; of
        # those before it; and of what came before the first batch, which is not counted.
        self._cpu_s: float | None = None
        self._cpu_wait_s: float | None = None
        self._before = (0.0, 0.0)
        self.mark_s = (0.0, 0.0)

    def place(self, pid: int | None) -> None:
        """From now on it is process `pid`; None: none of this machine."""
        self._before = self._used()
        self._cpu_s = self._cpu_wait_s = self._process = None
        self.pid = pid

    def mark(self) -> None:
        """The first batch has come."""
        self._look()
        self.mark_s = self._used()

    def _used(self) -> tuple[float, float]:
        cpu_s, waited_s = self._before
        return cpu_s + (self._cpu_s or 0.0), waited_s + (self._cpu_wait_s or 0.0)

    def look(self, worker: int, elapsed_s: float) -> WorkerStats:
        """Its numbers, with CPU time and memory as they are now (about 0.1 ms)."""
        rss_bytes = self._look()
        cpu_s, waited_s = self._used()
        known = self._cpu_s is not None or cpu_s > 0
        waits_known = self._cpu_wait_s is not None or waited_s > 0
        return WorkerStats(
            worker=worker,
            pid=self.pid,
            batches=self.batches,
            busy_share=self.busy_s / elapsed_s if elapsed_s > 0 else 0.0,
            cpu_s=cpu_s if known else None,
            rss_bytes=rss_bytes,
            restarts=self.restarts,
            busy_s=self.busy_s,
            cpu_wait_s=waited_s if waits_known else None,
            running=self.running,
        )

    def _look(self) -> int | None:
        """Ask for CPU time; returns the resident bytes."""
        pid, process = self.pid, self._process
        if pid is None:
            return None
        # It ended, is another user's, or no descriptor is left: what was seen before stays.
        with suppress(psutil.Error, OSError):
            if process is None:
                process = self._process = psutil.Process(pid)
            with process.oneshot():
                cpu = process.cpu_times()
                rss_bytes = int(process.memory_info().rss)
            waited_s = cpu_wait_s(pid)
            if self.pid == pid:  # else another thread has just put a new process there
                self._cpu_s = cpu.user + cpu.system
                self._cpu_wait_s = waited_s if waited_s is not None else self._cpu_wait_s
            return rss_bytes
        return None
