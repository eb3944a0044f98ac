"""The rows of plots of the page: what each question about a run is answered with. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from swift_loader.report.runs import Interval, Run, merge, rss_bytes, workers_cpu
from swift_loader.report.svg import Mark, Plot, Series, Step, nice_top, plot, value_text
from swift_loader.report.terminal import clock, describe_event

__all__ = ["plot_rows"]

_STEPS = 300  # at most, in one plot
_MARKS = {
    "epoch_begin": ("line", "--ink"),
    "restart": ("triangle", "--c-restart"),
    "skipped": ("triangle", "--c-bad"),
    "replaced": ("triangle", "--c-bad"),
    "warning": ("triangle", "--c-warning"),
}


@dataclass(frozen=True)
class _Question:
    """One row of plots: what each run's intervals are drawn as."""

    title: str
    note: str
    series: Callable[[Sequence[Interval]], list[Series]]
    unit: str = ""
    stacked: bool = False
    marked: bool = False
    limited: bool = False  # by the number of CPUs


def plot_rows(runs: Sequence[Run]) -> list[str]:
    """HTML: a row a question, a plot a run in it, with the same axes in all plots of a row."""
    drawn = [(run, merge(run.intervals, _STEPS)) for run in runs]
    end_s = max((run.duration_s for run in runs), default=0.0)
    return [_row(question, f"plot-{i}", drawn, end_s) for i, question in enumerate(_QUESTIONS)]


def _row(
    question: _Question,
    identity: str,
    runs: Sequence[tuple[Run, list[Interval]]],
    end_s: float,
) -> str:
    drawn = [(run, intervals, question.series(intervals)) for run, intervals in runs]
    names = {series.name: series.color for _, _, all_series in drawn for series in all_series}
    values = [
        v for _, _, all_series in drawn for s in all_series for v in s.values if v is not None
    ]
    if question.limited:
        values += [_nb_cpus(run) or 0.0 for run, _ in runs]
    top = 1.0 if question.stacked else nice_top(values)
    figures = []
    for i, (run, intervals, all_series) in enumerate(drawn):
        caption = f"<figcaption>{escape(run.label)}</figcaption>" if len(runs) > 1 else ""
        picture = Plot(
            title=f"{question.title}: {run.label}",
            description=question.note,
            steps=[_step(question, all_series, j, iv) for j, iv in enumerate(intervals)],
            series=all_series,
            end_s=end_s,
            top=top,
            unit=question.unit,
            stacked=question.stacked,
            limit=_nb_cpus(run) if question.limited else None,
            marks=_run_marks(run) if question.marked else (),
            width=1080 if len(runs) == 1 else 560,
        )
        figures.append(f"<figure>{caption}{plot(picture, f'{identity}-{i}')}</figure>")
    keys = [_key(name, color) for name, color in names.items()] if len(names) > 1 else []
    if question.marked:
        kinds = {event.kind for run, _ in runs for event in run.events}
        keys += [
            _key(text, _MARKS[kind][1], _MARKS[kind][0]) for kind, text in _LEGEND if kind in kinds
        ]
    legend = f'<p class="legend">{"".join(keys)}</p>' if keys else ""
    return (
        f'<h2>{escape(question.title)}</h2><p class="note">{escape(question.note)}</p>{legend}'
        f'<div class="runs">{"".join(figures)}</div>'
    )


def _nb_cpus(run: Run) -> float | None:
    count = run.header.get("host", {}).get("nb_cpus")
    return float(count) if count else None


def _step(question: _Question, all_series: list[Series], j: int, interval: Interval) -> Step:
    parts = [f"{clock(interval.from_s)} to {clock(interval.t_s)}"]
    for series in all_series:
        value = series.values[j]
        if value is not None:
            parts.append(f"{series.name} {value_text(value, question.unit)}")
    return Step(interval.from_s, interval.t_s, "; ".join(parts))


def _run_marks(run: Run) -> list[Mark]:
    return [
        Mark(event.t_s, *_MARKS[event.kind], f"{clock(event.t_s)} {describe_event(event)}")
        for event in run.events
        if event.kind in _MARKS
    ]


def _share(seconds: float, interval: Interval, lanes: int = 1) -> float:
    whole_s = interval.duration_s * lanes
    return seconds / whole_s if whole_s > 0 else 0.0


def _training_time(intervals: Sequence[Interval]) -> list[Series]:
    wait = [_share(i.totals.wait_s, i) for i in intervals]
    startup = [_share(i.totals.startup_s, i) for i in intervals]
    loop = [_share(i.totals.loop_s, i) for i in intervals]
    outside = [max(0.0, 1 - sum(s)) for s in zip(wait, startup, loop, strict=True)]
    return [
        Series("waiting for data", "--c-wait", wait),
        Series("waiting for the first batch", "--c-startup", startup),
        Series("training loop", "--c-loop", loop),
        Series("outside of epochs", "--c-outside", outside),
    ]


def _worker_time(intervals: Sequence[Interval]) -> list[Series]:
    return [
        Series(
            name,
            color,
            [_share(getattr(i.totals, f"{stage}_s"), i, len(i.workers) or 1) for i in intervals],
        )
        for stage, name, color in (
            ("fetch", "fetch", "--c-fetch"),
            ("collate", "collate", "--c-collate"),
            ("encode", "encode", "--c-encode"),
        )
    ]


def _throughput(intervals: Sequence[Interval]) -> list[Series]:
    return [Series("samples/s", "--c-loop", [_share(i.totals.samples, i) for i in intervals])]


def _queue(intervals: Sequence[Interval]) -> list[Series]:
    return [Series("batches ready", "--c-loop", [i.queue_depth for i in intervals])]


def _cpu(intervals: Sequence[Interval]) -> list[Series]:
    return [
        Series("workers together", "--c-fetch", [workers_cpu(i) for i in intervals]),
        Series("training process", "--c-collate", [i.consumer_cpu for i in intervals]),
    ]


def _memory(intervals: Sequence[Interval]) -> list[Series]:
    workers = [float(rss_bytes(i) - i.consumer_rss_bytes) for i in intervals]
    return [
        Series("workers together", "--c-fetch", workers),
        Series("training process", "--c-collate", [float(i.consumer_rss_bytes) for i in intervals]),
    ]


_QUESTIONS = (
    _Question(
        "Was training waiting for data?",
        "What the training process spent its time on. Triangles and lines are events.",
        _training_time,
        "%",
        stacked=True,
        marked=True,
    ),
    _Question("Throughput", "Samples a second that reached the training loop.", _throughput),
    _Question("Queue depth", "Batches ready when the training loop asked for one.", _queue),
    _Question(
        "What workers did",
        "Of all workers' time; the rest is idle. A batch counts when it is delivered.",
        _worker_time,
        "%",
        stacked=True,
    ),
    _Question("CPUs used", "The dashed line: CPUs that there are.", _cpu, limited=True),
    _Question("Memory", "Resident; pages that processes share count in each.", _memory, "B"),
)
_LEGEND = (
    ("restart", "worker restarted"),
    ("skipped", "sample skipped"),
    ("replaced", "sample replaced"),
    ("warning", "warning"),
    ("epoch_begin", "epoch begins"),
)


def _key(name: str, color: str, shape: str = "area") -> str:
    return f'<span><i class="{shape}" style="background:var({color})"></i>{escape(name)}</span>'
