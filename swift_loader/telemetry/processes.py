"""What one worker has done, and what its process uses: psutil is asked when somebody wants it."""

from __future__ import annotations

import psutil

from swift_loader.telemetry.stats import WorkerStats

__all__ = ["WorkerRow"]


class WorkerRow:
    """One worker over all the processes that it has been. `Meter` counts into it."""

    __slots__ = (
        "_cpu_before_s", "_cpu_s", "_process", "batches", "busy_s", "pid", "restarts", "running"
    )  # fmt: skip

    def __init__(self) -> None:
        self.batches = 0
        self.busy_s = 0.0
        self.restarts = 0
        self.running = False
        self.pid: int | None = None
        self._process: psutil.Process | None = None
        self._cpu_s: float | None = None  # of the process that runs now, when last looked at
        self._cpu_before_s = 0.0  # of those before it

    def place(self, pid: int | None) -> None:
        """From now on it is process `pid`; None: none of this machine."""
        self._cpu_before_s += self._cpu_s or 0.0
        self._cpu_s = self._process = None
        self.pid = pid

    def look(self, worker: int, elapsed_s: float) -> WorkerStats:
        """Its numbers, with CPU time and memory as they are now (about 0.1 ms)."""
        rss_bytes = None
        pid, process = self.pid, self._process
        if pid is not None:
            try:
                if process is None:
                    process = self._process = psutil.Process(pid)
                with process.oneshot():
                    cpu = process.cpu_times()
                    rss_bytes = int(process.memory_info().rss)
                if self.pid == pid:  # else another thread has just put a new process there
                    self._cpu_s = cpu.user + cpu.system
            except psutil.Error:  # it ended, or is another user's: what was seen before stays
                rss_bytes = None
        seen = self._cpu_s is not None or self._cpu_before_s > 0
        return WorkerStats(
            worker=worker,
            pid=pid,
            batches=self.batches,
            busy_share=self.busy_s / elapsed_s if elapsed_s > 0 else 0.0,
            cpu_s=self._cpu_before_s + (self._cpu_s or 0.0) if seen else None,
            rss_bytes=rss_bytes,
            restarts=self.restarts,
        )
