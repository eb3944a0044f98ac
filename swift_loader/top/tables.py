"""What ``swift-loader top`` shows: tables of text, made of runs, figures and facts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swift_loader.report.groups import compared, trainings
from swift_loader.report.runs import Run
from swift_loader.telemetry.units import format_bytes, format_seconds

__all__ = ["Table", "of_endpoint", "of_figures", "of_runs"]

_WORKERS = 32  # rows, at most
_PREFIX = "swift_loader_"

#: ``(name, labels) -> value``, as a page for Prometheus has them
Figures = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


@dataclass(frozen=True)
class Table:
    """Rows of text below a head; `note` stands above them."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def of_runs(runs: Sequence[Run], now_s: float) -> list[Table]:
    """Ranks and workers of benchmark files. `now_s`: Unix time."""
    ranks, workers = [], []
    for run in runs:
        if not run.intervals:
            continue
        last = run.intervals[-1]
        duration_s = last.duration_s or 1.0
        cpus = last.consumer_cpu + sum(row.cpu or 0.0 for row in last.workers)
        age_s = now_s - float(run.header.get("started_at") or now_s) - last.t_s
        state = "ended" if run.summary is not None else format_seconds(max(0.0, age_s))
        ranks.append(
            (
                str(run.header.get("consumer", "-")),
                "-" if last.epoch is None else str(last.epoch),
                f"{run.totals.batches:,}",
                f"{last.totals.samples / duration_s:,.0f}",
                f"{last.totals.wait_share:.0%}",
                f"{run.totals.wait_share:.0%}",
                "-" if last.queue_depth is None else f"{last.queue_depth:.1f}",
                f"{cpus:.2f}",
                run.verdict.bottleneck,
                state,
            )
        )
        for row in last.workers:
            workers.append(
                (
                    f"{run.header.get('consumer', '-')}/{row.worker}",
                    "-" if row.pid is None else str(row.pid),
                    f"{row.batches / duration_s:,.1f}",
                    "-" if row.cpu is None else f"{row.cpu:.2f}",
                    "-" if row.cpu_wait is None else f"{row.cpu_wait:.2f}",
                    "-" if row.rss_bytes is None else format_bytes(row.rss_bytes),
                )
            )
    notes = [compared(group)[0] for group in trainings(runs)]
    notes = notes or [run.verdict.sentence for run in runs[-1:]]
    head = ("rank", "epoch", "batches", "samples/s", "waits", "in all", "queue", "CPUs",
            "bottleneck", "age")  # fmt: skip
    tables = [Table("Ranks", head, tuple(ranks), " ".join(notes))]
    if workers:
        tables.append(_workers(workers))
    return tables


def of_figures(figures: Figures, before: Figures, seconds: float) -> list[Table]:
    """A page for Prometheus: rates are of the time since the page `before`."""
    page = _Page(figures, before, seconds)
    tables = []
    loaders = page.labels("batches_total", "loader")
    if loaders:
        tables.append(Table("Loaders", _LOADERS, tuple(map(page.loader, loaders))))
    workers = [
        (f"{loader}/{worker}", "-", *page.worker(loader, worker))
        for loader in loaders
        for worker in page.labels("worker_batches_total", "worker", loader)
    ]
    if workers:
        tables.append(_workers(workers))
    sessions = page.labels("endpoint_session_batches_total", "session")
    if page.labels("endpoint_workers", "loader"):
        note = (
            f"{page.total('endpoint_workers_running'):.0f} of {page.total('endpoint_workers'):.0f} "
            "workers run"
        )
        tables.append(Table("Endpoint", _SESSIONS, tuple(map(page.session, sessions)), note))
    if page.labels("producer_consumers", "loader"):
        consumers = page.labels("producer_consumer_batches_total", "consumer")
        note = f"{page.total('producer_consumers'):.0f} trainings are connected"
        tables.append(Table("Producer", _CONSUMERS, tuple(map(page.consumer, consumers)), note))
    rest = page.rest()
    if rest:
        tables.append(Table("Cache and others", ("figure", "value"), rest))
    return tables


def of_endpoint(facts: Mapping[str, Any]) -> list[Table]:
    """What an endpoint says of itself."""
    rows = tuple(
        (
            f"{session['session']} {session['dataset']}",
            str(session["state"]),
            str(session["consumer"]),
            str(session["workers"]),
            f"{session['batches']:,}",
            str(session["orders_waiting"]),
        )
        for session in facts["sessions"]
    )
    note = (
        f"{facts['address']}: {facts['workers_running']} of {facts['workers']} workers run, "
        f"up for {format_seconds(facts['uptime_s'])}"
    )
    head = ("session", "state", "consumer", "workers", "batches", "waiting")
    return [Table("Endpoint", head, rows, note)]


_LOADERS = ("loader", "epoch", "batches", "batches/s", "samples/s", "waits", "queue", "workers",
            "restarts")  # fmt: skip
_SESSIONS = ("session", "batches", "batches/s", "bytes/s", "waiting")
_CONSUMERS = ("training", "batches", "batches/s", "behind")
_SHOWN = ("batch", "sample", "epoch", "wait_", "loop_", "startup", "stage", "recent", "worker",
          "skipped", "replaced", "endpoint", "producer")  # fmt: skip


class _Page:
    def __init__(self, figures: Figures, before: Figures, seconds: float) -> None:
        self._figures = figures
        self._before = before
        self._seconds = seconds

    def labels(self, name: str, label: str, loader: str | None = None) -> list[str]:
        """The values of a label of this figure, as they come."""
        found = [
            dict(labels)
            for figure, labels in self._figures
            if figure == _PREFIX + name and (loader is None or ("loader", loader) in labels)
        ]
        return list(dict.fromkeys(labels[label] for labels in found if label in labels))

    def total(self, name: str, **labels: str) -> float:
        return _total(self._figures, name, labels)

    def rate(self, name: str, **labels: str) -> float:
        if self._seconds <= 0 or not self._before:
            return 0.0
        more = self.total(name, **labels) - _total(self._before, name, labels)
        return max(0.0, more) / self._seconds

    def loader(self, loader: str) -> tuple[str, ...]:
        return (
            loader,
            f"{self.total('epoch', loader=loader):.0f}",
            f"{self.total('batches_total', loader=loader):,.0f}",
            f"{self.rate('batches_total', loader=loader):,.1f}",
            f"{self.rate('samples_total', loader=loader):,.0f}",
            f"{self.total('recent_wait_ratio', loader=loader):.0%}",
            f"{self.total('recent_queue_depth', loader=loader):.1f}",
            f"{self.total('workers', loader=loader):.0f}",
            f"{self.total('worker_restarts_total', loader=loader):,.0f}",
        )

    def worker(self, loader: str, worker: str) -> tuple[str, ...]:
        of = {"loader": loader, "worker": worker}
        return (
            f"{self.rate('worker_batches_total', **of):,.1f}",
            f"{self.rate('worker_cpu_seconds_total', **of):.2f}",
            f"{self.rate('worker_cpu_wait_seconds_total', **of):.2f}",
            format_bytes(self.total("worker_resident_bytes", **of)),
        )

    def session(self, session: str) -> tuple[str, ...]:
        return (
            session,
            f"{self.total('endpoint_session_batches_total', session=session):,.0f}",
            f"{self.rate('endpoint_session_batches_total', session=session):,.1f}",
            f"{format_bytes(self.rate('endpoint_session_sent_bytes_total', session=session))}/s",
            f"{self.total('endpoint_session_waiting', session=session):.0f}",
        )

    def consumer(self, consumer: str) -> tuple[str, ...]:
        return (
            consumer,
            f"{self.total('producer_consumer_batches_total', consumer=consumer):,.0f}",
            f"{self.rate('producer_consumer_batches_total', consumer=consumer):,.1f}",
            f"{self.total('producer_consumer_behind', consumer=consumer):.0f}",
        )

    def rest(self) -> tuple[tuple[str, ...], ...]:
        """What no other table shows: a figure that somebody has added is seen all the same."""
        rows = []
        for (name, labels), value in self._figures.items():
            short = name.removeprefix(_PREFIX)
            if short == name or short.startswith(_SHOWN):
                continue
            of = " ".join(text for label, text in labels if label != "loader")
            rows.append((f"{short} {of}".strip(), f"{value:,.6g}"))
        return tuple(rows)


def _total(figures: Figures, name: str, labels: Mapping[str, str]) -> float:
    wanted = set(labels.items())
    return sum(
        value
        for (figure, has), value in figures.items()
        if figure == _PREFIX + name and wanted <= set(has)
    )


def _workers(rows: Sequence[tuple[str, ...]]) -> Table:
    head = ("worker", "pid", "batches/s", "CPU", "waits for a CPU", "memory")
    more = len(rows) - _WORKERS
    note = f"and {more} more" if more > 0 else ""
    return Table("Workers", head, tuple(rows[:_WORKERS]), note)
