"""The ``benchmark`` and ``benchmark_file`` options: what happened when, one JSON object a line.

```python
writer = open_benchmark(meter, path="run.jsonl", logger=None, plan={...}, options={...})
...                                   # meter.add(...) and meter.event(...) do the rest
writer.close()
```

There is no thread: once an interval (1 s) has passed, the thread that delivers batches writes a
line before it hands over the next batch. A batch costs a comparison; a line costs about 0.3 ms, and
0.1 ms a worker, whose CPU time and memory psutil looks up. While training waits long for one batch,
that interval is just longer. Each line is one `write` to a file opened for appending, so that all
consumers (and later runs) may share a file; ``run`` tells their lines apart.

A file stays readable however long a run takes: after 4 MB the interval is 2 s, and it doubles with
every 2 MB more. Three days with 8 workers make some 15 MB.

``schema`` counts the versions of this format. Lines and fields may be added within a version; a
reader passes over those that it does not know.

**Lines.** Every line has ``kind``, ``run`` (of one consumer's loader; 12 hex digits) and ``t_s``
(seconds since its header). Times end in ``_s``, sizes in bytes.

``header``
    ``schema`` 1, ``version`` (of swift_loader), ``started_at`` (Unix time), ``consumer``,
    ``interval_s``, ``plan`` and ``options`` (objects; values that are no JSON as their `repr`),
    ``host``: ``name``, ``pid``, ``nb_cpus`` (that this process may use), ``memory_bytes``,
    ``python``, ``torch``, ``system``.
``interval``
    What happened since ``from_s`` (the ``t_s`` of the interval line before, or 0): ``epoch``,
    ``batches``, ``samples``, ``nbytes``; ``elapsed_s`` (within epochs, without ``startup_s``, the
    wait for the first batch), ``worker_s`` (``elapsed_s`` summed over the workers), ``wait_s`` and
    ``loop_s`` (of ``elapsed_s``: waiting for a batch, own work of the training loop); ``fetch_s``,
    ``collate_s``, ``encode_s``, ``decode_s``, ``to_device_s``; ``queue_depth``
    (mean of what was ready when a batch was asked for; null without batches); ``consumer_cpu`` and
    ``consumer_rss_bytes`` of the training process; ``workers``: a list of ``worker``, ``pid``,
    ``batches`` (in the interval), ``cpu`` (CPUs used, 1.0 is one; null at first), ``cpu_wait``
    (CPUs that it was ready to use while others had them; null where nobody says), ``rss_bytes``;
    ``events``: how many of each kind there were; ``rare_wait_share``: of all waiting so far, how
    much came in the longest 2% of the waits; ``rare_fetch_share``: the same of the time in
    ``fetch``, by batches; ``slowest``: the ten slowest samples so far, a list of
    ``[index, seconds]``, where they have changed.
``event``
    ``event``: ``epoch_begin``, ``epoch_end`` (facts: ``epoch``), ``worker_start``, ``worker_stop``,
    ``restart`` (``worker``, ``pid``, ``why``), ``skipped``, ``replaced`` (``index``, ``why``),
    ``warning`` (``text``), or another; ``facts``: an object. At most 20 lines of a kind an
    interval, and 2,000 a run; the interval's ``events`` counts them all.
``summary``
    ``stats``: `LoaderStats.as_dict`, with what a cache did. Missing where the process was killed.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING

import psutil

from swift_loader.errors import ConfigError
from swift_loader.telemetry.metrics import Meter
from swift_loader.telemetry.output import Output
from swift_loader.telemetry.stats import LoaderStats, Totals, WorkerStats
from swift_loader.version import __version__

if TYPE_CHECKING:
    from loguru import Logger

__all__ = ["BenchmarkWriter", "open_benchmark", "versions"]

SCHEMA = 1
_EVENT_LINES = 20  # of one kind, an interval
_EVENT_LINES_IN_ALL = 2000  # of one kind, a run
_FIRST_BYTES = 4_000_000  # and then the interval doubles after each
_MORE_BYTES = 2_000_000


def open_benchmark(
    meter: Meter,
    *,
    path: str | PathLike[str] | None,
    logger: Logger | None,
    plan: Mapping[str, object],
    options: Mapping[str, object],
    interval_s: float = 1.0,
    stats: Callable[[], LoaderStats] | None = None,
) -> BenchmarkWriter:
    """Write the header, and from now on what `meter` hears: appended to `path`, or into `logger`.

    `logger` is that of an open log (`LogHandle.logger`); where none was configured the lines go
    nowhere, and `loader.stats()` alone tells. `stats` is asked for the summary; without it, the
    meter is.

    Raises `ConfigError` when `path` can't be written to.
    """
    if path is None:
        write, done = _to_log(logger), _nothing
    else:
        write, done = _to_file(fspath(path))
    return BenchmarkWriter(
        meter, write, done, plan, options, interval_s, meter.snapshot if stats is None else stats
    )


class BenchmarkWriter:
    """Listens to a `Meter` and writes lines. Made by `open_benchmark`."""

    def __init__(
        self,
        meter: Meter,
        write: Callable[[str], None],
        done: Callable[[], None],
        plan: Mapping[str, object],
        options: Mapping[str, object],
        interval_s: float,
        stats: Callable[[], LoaderStats],
    ) -> None:
        self._meter = meter
        self._stats = stats
        self._write = write
        self._done = done
        self._interval_s = interval_s
        self._run = uuid.uuid4().hex[:12]
        self._start_s = self._from_s = time.perf_counter()
        self._before = meter.totals()
        self._workers_before = {row.worker: row for row in meter.workers()}
        self._cpu_before_s = time.process_time()
        self._process = psutil.Process()
        self._events: Counter[str] = Counter()
        self._event_lines: Counter[str] = Counter()
        self._nbytes = 0
        self._longer_at_bytes = _FIRST_BYTES
        self._slowest: tuple[tuple[object, float], ...] = ()
        self._open = True
        self._line(
            "header",
            self._start_s,
            schema=SCHEMA,
            version=__version__,
            started_at=time.time(),
            consumer=meter.consumer,
            interval_s=interval_s,
            plan=dict(plan),
            options=dict(options),
            host=_host(),
        )
        meter.listen(self, self._start_s + interval_s)

    def interval(self, at_s: float) -> float:
        """Write the line of the time up to `at_s`; returns when the next one is due."""
        totals = self._meter.totals()
        delta = totals.since(self._before)
        workers = self._meter.workers()
        cpu_s = time.process_time()
        cpu = _per(cpu_s - self._cpu_before_s, at_s - self._from_s)
        rows = [self._worker(row, at_s - self._from_s) for row in workers]
        active_to_s = self._from_s + delta.elapsed_s + delta.startup_s
        if at_s - active_to_s > self._interval_s and delta.batches:
            # The loop left the epoch in between (to validate, to save): two lines tell when.
            self._interval_line(active_to_s, delta, cpu, rows)
            delta, rows = Totals(), [{**row, "batches": 0} for row in rows]
        self._interval_line(at_s, delta, cpu, rows)
        self._before = totals
        self._workers_before = {row.worker: row for row in workers}
        self._cpu_before_s = cpu_s
        if self._nbytes > self._longer_at_bytes:
            self._longer_at_bytes = self._nbytes + _MORE_BYTES
            self._interval_s *= 2
        return at_s + self._interval_s

    def event(self, kind: str, facts: dict[str, object]) -> None:
        """Write the line of one event, unless there were too many of its kind."""
        self._events[kind] += 1
        if self._events[kind] > _EVENT_LINES or self._event_lines[kind] >= _EVENT_LINES_IN_ALL:
            return
        self._event_lines[kind] += 1
        self._line("event", time.perf_counter(), event=kind, facts=facts)

    def close(self) -> None:
        """Write the last interval and the summary; listen no more. A second call does nothing.

        To be called after the threads that may cause events have ended, with the workers still
        known to the meter (their last CPU time is looked up).
        """
        if not self._open:
            return
        self._meter.listen(None)
        at_s = time.perf_counter()
        self.interval(at_s)
        self._line("summary", at_s, stats=self._stats().as_dict())
        self._open = False
        self._done()

    def _interval_line(
        self, to_s: float, delta: Totals, cpu: float, rows: list[dict[str, object]]
    ) -> None:
        slowest = self._meter.slowest()
        rare_wait_share, rare_fetch_share = self._meter.rare_shares()
        changed = {} if slowest == self._slowest else {"slowest": slowest}
        self._slowest = slowest
        self._line(
            "interval",
            to_s,
            from_s=_round(self._from_s - self._start_s),
            epoch=self._meter.epoch,
            **_delta(delta),
            consumer_cpu=cpu,
            consumer_rss_bytes=_rss_bytes(self._process),
            workers=rows,
            events=dict(self._events),
            rare_wait_share=_round(rare_wait_share),
            rare_fetch_share=_round(rare_fetch_share),
            **changed,
        )
        self._events.clear()
        self._from_s = to_s

    def _worker(self, row: WorkerStats, duration_s: float) -> dict[str, object]:
        before = self._workers_before.get(row.worker)
        used = waited = None
        if before is not None:
            used = _between(before.cpu_s, row.cpu_s, duration_s)
            waited = _between(before.cpu_wait_s, row.cpu_wait_s, duration_s)
        return {
            "worker": row.worker,
            "pid": row.pid,
            "batches": row.batches - (before.batches if before else 0),
            "cpu": used,
            "cpu_wait": waited,
            "rss_bytes": row.rss_bytes,
        }

    def _line(self, kind: str, at_s: float, **facts: object) -> None:
        if not self._open:
            return
        line = {"kind": kind, "run": self._run, "t_s": _round(at_s - self._start_s), **facts}
        text = json.dumps(line, default=_as_text, separators=(",", ":"))
        self._nbytes += len(text)
        self._write(text)


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except (psutil.Error, OSError):  # no descriptor is left to look with
        return 0


def _delta(delta: Totals) -> dict[str, object]:
    out: dict[str, object] = {
        name: _round(value) if isinstance(value, float) else value
        for name, value in delta._asdict().items()
    }
    out["loop_s"] = _round(delta.loop_s)
    out["queue_depth"] = _per(delta.queue_depth, delta.batches) if delta.batches else None
    return out


def _between(before_s: float | None, now_s: float | None, duration_s: float) -> float | None:
    return None if before_s is None or now_s is None else _per(now_s - before_s, duration_s)


def _per(amount: float, of: float) -> float:
    return _round(max(0.0, amount) / of) if of > 0 else 0.0


def _round(value: float) -> float:
    return round(value, 6)


def _as_text(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:199] + "…"


def _to_log(logger: Logger | None) -> Callable[[str], None]:
    if logger is None:
        raise ConfigError("benchmark=True: give a benchmark_file, or a logger to write into.")
    return lambda line: logger.info("benchmark {}", line)


def _to_file(path: str) -> tuple[Callable[[str], None], Callable[[], None]]:
    file = Output("benchmark_file", path)
    return lambda line: file.write(line.encode() + b"\n"), file.close


def _nothing() -> None:
    return


def versions() -> dict[str, str | None]:
    """Of swift_loader, Python and torch."""
    torch = sys.modules.get("torch")
    return {
        "swift_loader": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__) if torch else None,
    }


def _host() -> dict[str, object]:
    affinity = getattr(os, "sched_getaffinity", None)
    found = versions()
    return {
        "name": platform.node(),
        "pid": os.getpid(),
        "nb_cpus": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": found["python"],
        "torch": found["torch"],
        "system": platform.platform(),
    }
