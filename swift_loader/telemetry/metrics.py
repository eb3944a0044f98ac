"""What a loader measures: `Meter` sums the times of delivered batches, `snapshot` reads them.

`add` is plain additions into attributes: no lock, no system call (about 1 us); every 512 batches it
sorts them into distributions, at once (0.2 ms). One thread calls `add` and the epoch calls; the
others may come from any thread, as `snapshot` may (it can then be a batch behind in some columns).

A `Listener` (the benchmark file) hears of every event, and is called by `add` once the time that it
asked for has come. Without one that costs a comparison with infinity.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np

from swift_loader.telemetry.by_source import BySource
from swift_loader.telemetry.distribution import Distribution, add_rows
from swift_loader.telemetry.figures import Reading
from swift_loader.telemetry.processes import WorkerRow
from swift_loader.telemetry.slowest import Slowest
from swift_loader.telemetry.stats import (
    STAGES,
    LoaderStats,
    Recent,
    StageStats,
    Totals,
    WorkerStats,
    shares,
)
from swift_loader.telemetry.verdict import RARE, Evidence, judge

__all__ = ["BatchTimes", "Listener", "Meter"]

_RECENT_BATCHES = 512
_RECENT_INDICES = 100  # of skipped and replaced samples


class BatchTimes(NamedTuple):
    """One delivered batch. Times in seconds, `at_s` by `time.perf_counter()` of the consumer.

    `decode_s`: in the reader. `to_device_s`: issuing the copy (or the user's `to_device`).
    `wait_s`: from the training loop's `next()` to the batch. `queue_depth`: batches that were ready
    when it asked. `at_s`: when it got the batch.
    """

    worker: int
    epoch: int
    k: int
    nb_samples: int
    nbytes: int
    fetch_s: float
    collate_s: float
    encode_s: float
    decode_s: float
    to_device_s: float
    wait_s: float
    queue_depth: int
    at_s: float


class Listener(Protocol):
    """What `Meter` tells its benchmark file."""

    def interval(self, at_s: float) -> float:
        """The time asked for has come; returns the next one (`time.perf_counter()`)."""

    def event(self, kind: str, facts: dict[str, object]) -> None:
        """Something happened: ``epoch_begin``, ``epoch_end``, ``restart``, ``skipped``, ..."""


class Meter:
    """The running sums of one consumer. See the module's text for who calls what."""

    def __init__(self, consumer: int, nb_cpus: int | None = None) -> None:
        self.consumer = consumer
        self._nb_cpus = nb_cpus  # that there are for workers
        self.epoch: int | None = None
        self.by_source: BySource | None = None  # of a mixture
        self._lock = threading.Lock()  # for what any thread may change; never taken by `add`
        self._workers: dict[int, WorkerRow] = {}
        self._recent: deque[BatchTimes] = deque(maxlen=_RECENT_BATCHES)
        self._listener: Listener | None = None
        self._due_s = inf
        self._batches = self._samples = self._nbytes = 0
        self._fetch_s = self._collate_s = self._encode_s = 0.0
        self._decode_s = self._to_device_s = self._wait_s = 0.0
        self._depth_sum = self._depth_max = 0
        self._startup_s = 0.0
        # Elapsed time: what closed epochs took, and from the mark to the latest batch of this one.
        self._closed_s = 0.0
        self._mark_s: float | None = None
        self._at_s = 0.0
        # How long all workers together ran: up to the latest change of their number, and since.
        self._worker_s = self._worker_mark_s = 0.0
        self._nb_running = 0
        self._restarts = self._nb_skipped = self._nb_replaced = 0
        self._skipped: deque[int] = deque(maxlen=_RECENT_INDICES)
        self._replaced: deque[int] = deque(maxlen=_RECENT_INDICES)
        self._slowest = Slowest()
        # The batches since the last fold are only in `_recent`.
        self._nb_new = 0
        self._spread = {stage: Distribution() for stage in STAGES}
        self._others: list[Callable[[], Iterable[Reading]]] = []

    def listen(self, listener: Listener | None, due_s: float = inf) -> None:
        """Tell `listener` of every event from now on, and of the time `due_s`; None: nobody."""
        self._listener = listener
        self._due_s = inf if listener is None else due_s

    # -- by the thread that delivers batches ---------------------------------------------------

    def epoch_begins(self, epoch: int, at_s: float) -> None:
        """The training loop asked for an iterator. Time since the last batch is not counted."""
        self._close_epoch(self._at_s)
        if at_s >= self._due_s and self._listener is not None:
            self._due_s = self._listener.interval(at_s)
        self.epoch = epoch
        self._mark_s = self._at_s = at_s
        self.event("epoch_begin", epoch=epoch)

    def epoch_ends(self, at_s: float) -> None:
        """The training loop came back after the last batch: what it did with that one counts.

        Not called where it has left the epoch early.
        """
        self._close_epoch(at_s)
        self.event("epoch_end", epoch=self.epoch)

    def add(self, times: BatchTimes) -> None:
        """Count one delivered batch; each once."""
        (
            worker,
            _,
            _,
            nb_samples,
            nbytes,
            fetch_s,
            collate_s,
            encode_s,
            decode_s,
            to_device_s,
            wait_s,
            queue_depth,
            at_s,
        ) = times
        self._recent.append(times)
        self._nb_new += 1
        if self._nb_new == _RECENT_BATCHES:
            self._fold()
        if self._batches:
            self._wait_s += wait_s
        else:
            for each in list(self._workers.values()):
                each.mark()
            self._startup_s = wait_s if self._mark_s is None else at_s - self._mark_s
            self._mark_s = at_s
        self._batches += 1
        self._samples += nb_samples
        self._nbytes += nbytes
        self._fetch_s += fetch_s
        self._collate_s += collate_s
        self._encode_s += encode_s
        self._decode_s += decode_s
        self._to_device_s += to_device_s
        self._depth_sum += queue_depth
        if queue_depth > self._depth_max:
            self._depth_max = queue_depth
        self._at_s = at_s
        try:
            row = self._workers[worker]
        except KeyError:
            row = self._place(worker, None, running=True)
        row.batches += 1
        row.busy_s += fetch_s + collate_s + encode_s
        if at_s >= self._due_s and self._listener is not None:
            self._due_s = self._listener.interval(at_s)

    # -- by any thread -------------------------------------------------------------------------

    def worker_started(self, worker: int, pid: int | None) -> None:
        """Worker `worker` now runs as process `pid` of this machine (None: elsewhere)."""
        self._place(worker, pid, running=True)
        self.event("worker_start", worker=worker, pid=pid)

    def worker_restarted(self, worker: int, pid: int | None, why: str = "") -> None:
        """A new process took the place of a dead or hung one; `why` goes onto the time line."""
        row = self._place(worker, pid, running=True)
        with self._lock:
            row.restarts += 1
            self._restarts += 1
        self.event("restart", worker=worker, pid=pid, why=why)

    def worker_stopped(self, worker: int) -> None:
        """Worker `worker` was ended on purpose; its batches stay counted."""
        self._place(worker, None, running=False)
        self.event("worker_stop", worker=worker)

    def skipped(self, index: int, why: str = "") -> None:
        """Sample `index` raised, and was left out."""
        with self._lock:
            self._nb_skipped += 1
            self._skipped.append(index)
        self.event("skipped", index=index, why=why)

    def replaced(self, index: int, why: str = "") -> None:
        """Sample `index` raised, and another one took its place."""
        with self._lock:
            self._nb_replaced += 1
            self._replaced.append(index)
        self.event("replaced", index=index, why=why)

    def took(self, index: Any, seconds: float) -> None:
        """Sample `index` took so long to fetch; the slowest of its batch is enough."""
        self._slowest.add(index, seconds)

    def also(self, ask: Callable[[], Iterable[Reading]]) -> None:
        """`ask` gives figures of another part, whenever a snapshot is taken, in any thread."""
        self._others.append(ask)

    def event(self, kind: str, **facts: object) -> None:
        """Tell the benchmark file, if there is one, what is worth a line. `facts`: JSON values."""
        if self._listener is not None:
            self._listener.event(kind, facts)

    def totals(self) -> Totals:
        """The running sums, without looking at any process."""
        elapsed_s = self._elapsed_s()
        return Totals(
            batches=self._batches,
            samples=self._samples,
            nbytes=self._nbytes,
            elapsed_s=elapsed_s,
            worker_s=self._worker_s + self._nb_running * (elapsed_s - self._worker_mark_s),
            startup_s=self._startup_s,
            fetch_s=self._fetch_s,
            collate_s=self._collate_s,
            encode_s=self._encode_s,
            decode_s=self._decode_s,
            to_device_s=self._to_device_s,
            wait_s=self._wait_s,
            queue_depth=self._depth_sum,
        )

    def workers(self) -> tuple[WorkerStats, ...]:
        """Each worker's row, with its CPU time and memory looked up now (about 0.1 ms a worker)."""
        elapsed_s = self.totals().elapsed_s
        return tuple(row.look(worker, elapsed_s) for worker, row in sorted(self._workers.items()))

    def snapshot(self) -> LoaderStats:
        """Everything so far."""
        totals = self.totals()
        elapsed_s = totals.elapsed_s
        per_s = 1 / elapsed_s if elapsed_s > 0 else 0.0
        batches = totals.batches
        recent, spread = self._distributions()
        workers = self.workers()
        slowest = self._slowest.table()
        marks = [row.mark_s for row in list(self._workers.values())]
        evidence = Evidence(
            totals,
            nb_workers=self._nb_running,
            nb_cpus=self._nb_cpus,
            cpu_s=_less(_sum(row.cpu_s for row in workers), marks, 0),
            cpu_wait_s=_less(_sum(row.cpu_wait_s for row in workers), marks, 1),
            rare_wait_share=spread["wait"].share_of_longest(RARE),
            rare_fetch_share=spread["fetch"].share_of_longest(RARE),
            slowest=slowest,
        )
        verdict = judge(evidence)
        return LoaderStats(
            consumer=self.consumer,
            epoch=self.epoch,
            batches=batches,
            samples=totals.samples,
            nbytes=totals.nbytes,
            elapsed_s=elapsed_s,
            startup_s=totals.startup_s,
            batches_per_s=batches * per_s,
            samples_per_s=totals.samples * per_s,
            bytes_per_s=totals.nbytes * per_s,
            wait_share=totals.wait_share,
            bottleneck=verdict.bottleneck,
            verdict=verdict.sentence,
            advice=verdict.advice,
            stages=_stages(totals, spread),
            recent=_recent(recent),
            queue_depth_mean=totals.queue_depth / batches if batches else 0.0,
            queue_depth_max=self._depth_max,
            restarts=self._restarts,
            nb_skipped=self._nb_skipped,
            skipped=tuple(self._skipped),
            nb_replaced=self._nb_replaced,
            replaced=tuple(self._replaced),
            slowest=slowest,
            sources={} if self.by_source is None else self.by_source.snapshot(),
            rare_wait_share=evidence.rare_wait_share,
            rare_fetch_share=evidence.rare_fetch_share,
            nb_running=self._nb_running,
            workers=workers,
            others=tuple(reading for ask in self._others for reading in ask()),
        )

    def slowest(self) -> tuple[tuple[Any, float], ...]:
        """The ten slowest samples: index and seconds."""
        return self._slowest.table()

    def rare_shares(self) -> tuple[float, float]:
        """How much of all waiting, and of all fetching, came in the longest 2% of each."""
        _, spread = self._distributions()
        return spread["wait"].share_of_longest(RARE), spread["fetch"].share_of_longest(RARE)

    def _fold(self) -> None:
        with self._lock:
            new = list(self._recent)[-self._nb_new :]
            self._nb_new = 0
            _spread_out(new, self._spread)

    def _distributions(self) -> tuple[list[BatchTimes], dict[str, Distribution]]:
        """The latest batches, and the distributions over all."""
        with self._lock:
            spread = {stage: each.copy() for stage, each in self._spread.items()}
            recent = list(self._recent)
            nb_new = self._nb_new
        _spread_out(recent[-nb_new:] if nb_new else [], spread)
        return recent, spread

    def _close_epoch(self, at_s: float) -> None:
        if self._mark_s is not None:
            self._closed_s += at_s - self._mark_s
        self._mark_s = None

    def _elapsed_s(self) -> float:
        return self._closed_s + (0.0 if self._mark_s is None else self._at_s - self._mark_s)

    def _place(self, worker: int, pid: int | None, *, running: bool) -> WorkerRow:
        with self._lock:
            row = self._workers.setdefault(worker, WorkerRow())
            row.place(pid)
            if row.running != running:
                elapsed_s = self._elapsed_s()
                self._worker_s += self._nb_running * (elapsed_s - self._worker_mark_s)
                self._worker_mark_s = elapsed_s
                self._nb_running += 1 if running else -1
                row.running = running
        return row


def _stages(totals: Totals, spread: dict[str, Distribution]) -> dict[str, StageStats]:
    share = shares(totals)
    out = {}
    for stage in STAGES:
        total_s: float = getattr(totals, f"{stage}_s")
        out[stage] = StageStats(
            total_s=total_s,
            share=share[stage],
            mean_s=total_s / totals.batches if totals.batches else 0.0,
            p50_s=spread[stage].quantile(0.5),
            p99_s=spread[stage].quantile(0.99),
            max_s=spread[stage].longest_s,
        )
    return out


_TIMES = slice(5, 11)  # fields of `BatchTimes`, in the order of `STAGES`


def _spread_out(batches: list[BatchTimes], into: dict[str, Distribution]) -> None:
    if not batches:
        return
    columns = list(zip(*batches, strict=True))
    times = np.array(columns[_TIMES], np.float64)
    *staged, loop = into.values()
    add_rows(staged, times)
    # What the training loop did between two batches of one epoch.
    between = np.diff(np.array(columns[-1], np.float64)) - times[-1, 1:]
    epochs = np.array(columns[1])
    between = between[epochs[1:] == epochs[:-1]]
    add_rows([loop], np.maximum(between, 0.0)[np.newaxis])


def _recent(batches: list[BatchTimes]) -> Recent:
    # The first one's own time began before it.
    counted = batches[1:]
    wait_s = sum(times.wait_s for times in counted)
    elapsed_s = wait_s + sum(_loop_s(batches))
    per_s = 1 / elapsed_s if elapsed_s > 0 else 0.0
    return Recent(
        batches_per_s=len(counted) * per_s,
        samples_per_s=sum(times.nb_samples for times in counted) * per_s,
        bytes_per_s=sum(times.nbytes for times in counted) * per_s,
        wait_share=wait_s * per_s,
        queue_depth=sum(t.queue_depth for t in counted) / len(counted) if counted else 0.0,
    )


def _loop_s(batches: Sequence[BatchTimes]) -> list[float]:
    # What the training loop did between two batches of one epoch.
    return [
        max(0.0, b.at_s - b.wait_s - a.at_s) for a, b in pairwise(batches) if a.epoch == b.epoch
    ]


def _less(seconds: float | None, marks: list[tuple[float, float]], at: int) -> float | None:
    return None if seconds is None else max(0.0, seconds - sum(mark[at] for mark in marks))


def _sum(seconds: Iterable[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return sum(known) if known else None
