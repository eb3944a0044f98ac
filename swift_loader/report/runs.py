"""Benchmark files read back: what `report` shows, as frozen dataclasses. Pure but for `read_runs`.

The lines are described in `swift_loader.telemetry.monitor`. A line that was cut short (a killed
process, a full disk) or is none of ours is counted and passed over. A log file into which
``benchmark=True`` wrote is read too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike, fspath
from typing import Any

from swift_loader.telemetry.stats import Totals
from swift_loader.telemetry.verdict import Evidence, Verdict, judge

__all__ = [
    "Event",
    "Interval",
    "Run",
    "RunReader",
    "Stretch",
    "WorkerUse",
    "merge",
    "read_runs",
    "waiting",
]

_WAITS_MUCH = 0.2  # an interval with a larger share of waiting belongs to a stretch
_LOOKS = 100  # pieces of a run: what is shorter is no stretch of its own
_JSON_AT = '{"kind":"'


@dataclass(frozen=True)
class WorkerUse:
    """One worker in one interval. `cpu`: CPUs used, 1.0 is one whole; None: not known.

    `cpu_wait`: CPUs that it was ready to use, and others had.
    """

    worker: int
    pid: int | None
    batches: int
    cpu: float | None
    rss_bytes: int | None
    cpu_wait: float | None = None


@dataclass(frozen=True)
class Interval:
    """From `from_s` to `t_s` after the start. `totals` holds what came within it."""

    from_s: float
    t_s: float
    epoch: int | None
    totals: Totals
    consumer_cpu: float
    consumer_rss_bytes: int
    workers: tuple[WorkerUse, ...]
    events: Mapping[str, int]
    rare_wait_share: float = 0.0  # of all waiting up to here
    rare_fetch_share: float = 0.0  # of all fetching up to here
    slowest: tuple[tuple[Any, float], ...] | None = None  # up to here; None: as before

    @property
    def duration_s(self) -> float:
        return self.t_s - self.from_s

    @property
    def queue_depth(self) -> float | None:
        """Mean number of batches that were ready; None when none was delivered."""
        totals = self.totals
        return totals.queue_depth / totals.batches if totals.batches else None


@dataclass(frozen=True)
class Event:
    t_s: float
    kind: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Stretch:
    """Consecutive intervals in which training waited for more than a fifth of the time."""

    from_s: float
    t_s: float
    totals: Totals

    @property
    def waited_s(self) -> float:
        return self.totals.wait_s

    @property
    def bottleneck(self) -> str:
        return judge(Evidence(self.totals)).bottleneck


@dataclass(frozen=True)
class Run:
    """One consumer's loader, from its header to its summary (None where it was killed)."""

    run: str
    label: str
    header: Mapping[str, Any]
    intervals: tuple[Interval, ...]
    events: tuple[Event, ...]
    summary: Mapping[str, Any] | None

    @property
    def totals(self) -> Totals:
        return _sum(interval.totals for interval in self.intervals)

    @cached_property
    def verdict(self) -> Verdict:
        """What the run's figures mean."""
        return judge(self.evidence)

    @property
    def evidence(self) -> Evidence:
        """What there is to judge by."""
        host = self.header.get("host", {})
        last = self.intervals[-1] if self.intervals else None
        return Evidence(
            self.totals,
            nb_workers=len(last.workers) if last else 0,
            nb_cpus=int(host["nb_cpus"]) if host.get("nb_cpus") else None,
            cpu_s=_used(self.intervals, "cpu"),
            cpu_wait_s=_used(self.intervals, "cpu_wait"),
            rare_wait_share=last.rare_wait_share if last else 0.0,
            rare_fetch_share=last.rare_fetch_share if last else 0.0,
            slowest=self.slowest,
        )

    @property
    def slowest(self) -> tuple[tuple[Any, float], ...]:
        """The slowest samples: index and seconds."""
        told = [i.slowest for i in self.intervals if i.slowest is not None]
        return told[-1] if told else ()

    @property
    def duration_s(self) -> float:
        ends = [interval.t_s for interval in self.intervals] + [event.t_s for event in self.events]
        return max(ends, default=0.0)

    @property
    def event_counts(self) -> Counter[str]:
        """All events, those too many for a line of their own included."""
        counts: Counter[str] = Counter()
        for interval in self.intervals:
            counts.update(interval.events)
        written = Counter(event.kind for event in self.events)
        return counts | written  # the larger: the last interval of a killed run has no line

    @property
    def peak_rss_bytes(self) -> int:
        """The most that training process and workers held together (shared pages count twice)."""
        return max((rss_bytes(interval) for interval in self.intervals), default=0)


@dataclass
class _Lines:
    header: dict[str, Any] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    summary: dict[str, Any] | None = None


def read_runs(paths: Sequence[str | PathLike[str]]) -> tuple[list[Run], int]:
    """All runs of these files, as they begin, and how many lines were passed over.

    Raises `OSError` for a file that can't be read.
    """
    readers = [RunReader(path) for path in paths]
    runs = [run for reader in readers for run in reader.read(whole=True)]
    return runs, sum(reader.passed_over for reader in readers)


class RunReader:
    """Reads a file that may still grow: each `read` goes on where the last one ended."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.passed_over = 0  # lines
        self._path = fspath(path)
        self._at = 0
        self._found: dict[str, _Lines] = {}

    def read(self, *, whole: bool = False) -> list[Run]:
        """All runs so far. A line that has no end yet is left for later, unless `whole`.

        Raises `OSError`.
        """
        with open(self._path, "rb") as file:
            file.seek(self._at)
            data = file.read()
        size = len(data) if whole else data.rfind(b"\n") + 1
        self._at += size
        lines = data[:size].decode("utf-8", "replace").splitlines()
        self.passed_over += _collect(lines, self._found)
        return list(_runs(self._found, self._path))


def waiting(run: Run) -> list[Stretch]:
    """When training waited: stretches, the longest wait first. The startup is not one of them."""
    stretches: list[Stretch] = []
    goes_on = False
    for interval in merge(run.intervals, _LOOKS):
        if not interval.totals.batches:  # outside of epochs: nothing to tell
            continue
        if interval.totals.wait_share <= _WAITS_MUCH:
            goes_on = False
        elif goes_on:
            last = stretches[-1]
            totals = _sum((last.totals, interval.totals))
            stretches[-1] = Stretch(last.from_s, interval.t_s, totals)
        else:
            stretches.append(Stretch(interval.from_s, interval.t_s, interval.totals))
            goes_on = True
    return sorted(stretches, key=lambda stretch: -stretch.waited_s)


def merge(intervals: Sequence[Interval], at_most: int) -> list[Interval]:
    """The same time in at most so many intervals: neighbours are put together.

    Each stands for about as long a time as the others: in a long run, later intervals are longer.
    """
    if len(intervals) <= at_most:
        return list(intervals)
    begin_s, end_s = intervals[0].from_s, intervals[-1].t_s
    step_s = (end_s - begin_s) / at_most or 1.0
    groups: dict[int, list[Interval]] = {}
    for interval in intervals:
        middle_s = (interval.from_s + interval.t_s) / 2
        place = min(at_most - 1, max(0, int((middle_s - begin_s) / step_s)))
        groups.setdefault(place, []).append(interval)
    return [group[0] if len(group) == 1 else _merged(group) for group in groups.values()]


def rss_bytes(interval: Interval) -> int:
    """Of the training process and its workers together."""
    return interval.consumer_rss_bytes + sum(row.rss_bytes or 0 for row in interval.workers)


def workers_cpu(interval: Interval) -> float:
    """CPUs that the workers used together."""
    return sum(row.cpu or 0.0 for row in interval.workers)


def _collect(lines: Iterable[str], found: dict[str, _Lines]) -> int:
    passed_over = 0
    for text in lines:
        start = text.find(_JSON_AT)
        try:
            line = json.loads(text[start:]) if start >= 0 else None
            if line is None:
                passed_over += bool(text.strip())
                continue
            _take(line, found.setdefault(str(line["run"]), _Lines()))
        except (ValueError, KeyError, TypeError, AttributeError):
            passed_over += 1
    return passed_over


def _take(line: dict[str, Any], into: _Lines) -> None:
    kind = line["kind"]
    if kind == "header":
        into.header = line
    elif kind == "interval":
        into.intervals.append(_interval(line))
    elif kind == "event":
        into.events.append(Event(float(line["t_s"]), str(line["event"]), dict(line["facts"])))
    elif kind == "summary":
        into.summary = dict(line["stats"])
    else:
        raise ValueError(f"a line of the unknown kind {kind!r}")


def _interval(line: dict[str, Any]) -> Interval:
    values = {**line, "queue_depth": (line["queue_depth"] or 0.0) * line["batches"]}
    # Each number as the type that it has in `Totals`.
    numbers = {name: type(zero)(values[name]) for name, zero in Totals._field_defaults.items()}
    return Interval(
        from_s=float(line["from_s"]),
        t_s=float(line["t_s"]),
        epoch=line["epoch"],
        totals=Totals(**numbers),
        consumer_cpu=float(line["consumer_cpu"]),
        consumer_rss_bytes=int(line["consumer_rss_bytes"]),
        workers=tuple(WorkerUse(**row) for row in line["workers"]),
        events={str(kind): int(count) for kind, count in line["events"].items()},
        rare_wait_share=float(line.get("rare_wait_share", 0.0)),
        rare_fetch_share=float(line.get("rare_fetch_share", 0.0)),
        slowest=_slowest(line.get("slowest")),
    )


def _slowest(pairs: Any) -> tuple[tuple[Any, float], ...] | None:
    return None if pairs is None else tuple((index, float(seconds)) for index, seconds in pairs)


def _runs(found: dict[str, _Lines], path: str) -> Iterator[Run]:
    for number, (run, lines) in enumerate(found.items(), 1):
        consumer = lines.header.get("consumer")
        label = path if len(found) == 1 else f"{path} #{number}"
        if consumer is not None:
            label += f", consumer {consumer}"
        yield Run(
            run=run,
            label=label,
            header=lines.header,
            intervals=tuple(lines.intervals),
            events=tuple(sorted(lines.events, key=lambda event: event.t_s)),
            summary=lines.summary,
        )


def _used(intervals: Iterable[Interval], what: str) -> float | None:
    """CPU seconds of all workers. A worker's first interval has none: it is taken for the mean."""
    seconds, nb_known, nb_batches = 0.0, 0, 0
    for interval in intervals:
        for row in interval.workers:
            nb_batches += row.batches
            used = getattr(row, what)
            if used is not None and row.batches:
                seconds += used * interval.duration_s
                nb_known += row.batches
    return seconds * nb_batches / nb_known if nb_known else None


def _sum(parts: Iterable[Totals]) -> Totals:
    columns = zip(*parts, strict=True)
    sums = [sum(column) for column in columns]
    return Totals._make(sums) if sums else Totals()


def _merged(group: Sequence[Interval]) -> Interval:
    last = group[-1]
    duration_s = last.t_s - group[0].from_s
    events: Counter[str] = Counter()
    for interval in group:
        events.update(interval.events)
    cpu_s: dict[int, float] = {}
    batches: Counter[int] = Counter()
    for interval in group:
        for row in interval.workers:
            batches[row.worker] += row.batches
            if row.cpu is not None:
                cpu_s[row.worker] = cpu_s.get(row.worker, 0.0) + row.cpu * interval.duration_s
    workers = tuple(
        WorkerUse(
            row.worker,
            row.pid,
            batches[row.worker],
            cpu_s[row.worker] / duration_s if row.worker in cpu_s and duration_s > 0 else None,
            row.rss_bytes,
        )
        for row in last.workers
    )
    told = [interval.slowest for interval in group if interval.slowest is not None]
    consumer_cpu_s = sum(interval.consumer_cpu * interval.duration_s for interval in group)
    return Interval(
        from_s=group[0].from_s,
        t_s=last.t_s,
        epoch=last.epoch,
        totals=_sum(interval.totals for interval in group),
        consumer_cpu=consumer_cpu_s / duration_s if duration_s > 0 else 0.0,
        consumer_rss_bytes=max(interval.consumer_rss_bytes for interval in group),
        workers=workers,
        events=events,
        rare_wait_share=last.rare_wait_share,
        rare_fetch_share=last.rare_fetch_share,
        slowest=told[-1] if told else None,
    )
