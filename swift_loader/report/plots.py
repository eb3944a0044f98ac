"""The time line of the page: a plot for each question about a run. Pure.

One run has all its series in a plot. Several runs have their time beside each other, and lie over
one another where one line says it: throughput, queue, CPUs, memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from swift_loader.report.runs import Interval, Run, merge, rss_bytes, workers_cpu
from swift_loader.report.svg import Mark, Plot, Series, Step, nice_top, plot, value_text
from swift_loader.report.terminal import clock, describe_event
from swift_loader.telemetry.printable import printable

__all__ = ["NB_COLORS", "time_line"]

NB_COLORS = 8  # runs that can be told apart, one over the other
_STEPS = 300  # at most, in one plot
_MARKS_SHOWN = 300
_MARKS = {
    "epoch_begin": ("line", "--ink"),
    "restart": ("triangle", "--c-restart"),
    "skipped": ("triangle", "--c-bad"),
    "replaced": ("triangle", "--c-bad"),
    "warning": ("triangle", "--c-warning"),
}


@dataclass(frozen=True)
class _Question:
    """`over`: what is drawn of each run where several lie over one another; None: they do not."""

    title: str
    note: str
    series: Callable[[Sequence[Interval]], list[Series]]
    over: Callable[[Interval], float | None] | None = None
    unit: str = ""
    stacked: bool = False
    marked: bool = False
    limited: bool = False  # by the number of CPUs


_Drawn = tuple[Run, list[Interval]]


def time_line(runs: Sequence[Run]) -> str:
    """HTML: all plots on one axis of time, in a box that can be zoomed and moved sideways."""
    drawn = [(run, merge(run.intervals, _STEPS)) for run in runs[:NB_COLORS]]
    end_s = max((run.duration_s for run, _ in drawn), default=0.0)
    parts = []
    for i, question in enumerate(_QUESTIONS):
        parts.append(
            f'<div class="stay"><h2>{escape(question.title)}</h2>'
            f'<p class="note">{escape(question.note)}</p>{_legend(question, drawn)}</div>'
        )
        if len(drawn) > 1 and question.over is not None:
            parts.append(plot(_over(question, question.over, drawn, end_s), f"plot-{i}"))
            continue
        for j, one in enumerate(drawn):
            if len(drawn) > 1:
                parts.append(
                    f'<p class="stay label">{_swatch(j)}{escape(printable(one[0].label))}</p>'
                )
            parts.append(plot(_of_one(question, one, end_s), f"plot-{i}-{j}"))
    left_out = len(runs) - len(drawn)
    note = f'<p class="note">and {left_out} runs more, not drawn</p>' if left_out > 0 else ""
    return f'{note}<div class="timeline"><div class="canvas">{"".join(parts)}</div></div>'


def _of_one(question: _Question, drawn: _Drawn, end_s: float) -> Plot:
    run, intervals = drawn
    all_series = question.series(intervals)
    values = [v for series in all_series for v in series.values if v is not None]
    limit = _nb_cpus(run) if question.limited else None
    return Plot(
        title=f"{question.title}: {printable(run.label)}",
        description=question.note,
        steps=[_step(question, all_series, i, each) for i, each in enumerate(intervals)],
        series=all_series,
        end_s=end_s,
        top=1.0 if question.stacked else nice_top([*values, limit or 0.0]),
        unit=question.unit,
        stacked=question.stacked,
        limit=limit,
        marks=_run_marks(run) if question.marked else (),
    )


def _over(
    question: _Question,
    value_of: Callable[[Interval], float | None],
    drawn: Sequence[_Drawn],
    end_s: float,
) -> Plot:
    lines = []
    for i, (run, intervals) in enumerate(drawn):
        steps = [Step(each.from_s, each.t_s, "") for each in intervals]
        values = [value_of(each) for each in intervals]
        lines.append(Series(run.label, f"--c-run-{i}", values, steps))
    told = [v for line in lines for v in line.values if v is not None]
    limit = max((_nb_cpus(run) or 0.0 for run, _ in drawn), default=0.0) or None
    limit = limit if question.limited else None
    return Plot(
        title=f"{question.title}: {len(drawn)} runs",
        description=question.note,
        steps=[],
        series=lines,
        end_s=end_s,
        top=nice_top([*told, limit or 0.0]),
        unit=question.unit,
        limit=limit,
    )


def _legend(question: _Question, drawn: Sequence[_Drawn]) -> str:
    keys = []
    if len(drawn) > 1 and question.over is not None:
        keys = [
            f"<span>{_swatch(i)}{escape(printable(run.label))}</span>"
            for i, (run, _) in enumerate(drawn)
        ]
    else:
        series = question.series([])
        if len(series) > 1:
            keys = [_key(each.name, each.color) for each in series]
        if question.marked:
            kinds = {event.kind for run, _ in drawn for event in run.events}
            keys += [
                _key(text, _MARKS[kind][1], _MARKS[kind][0])
                for kind, text in _LEGEND
                if kind in kinds
            ]
    return f'<p class="legend">{"".join(keys)}</p>' if keys else ""


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
    told = [event for event in run.events if event.kind in _MARKS]
    if len(told) > _MARKS_SHOWN:  # so many epochs: what went wrong comes first
        told = sorted(told, key=lambda event: event.kind == "epoch_begin")[:_MARKS_SHOWN]
    return [
        Mark(
            event.t_s, *_MARKS[event.kind], printable(f"{clock(event.t_s)} {describe_event(event)}")
        )
        for event in told
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
    stages = ("fetch", "collate", "encode")
    rows = []
    for i in intervals:
        parts = [
            _share(getattr(i.totals, f"{stage}_s"), i, len(i.workers) or 1) for stage in stages
        ]
        most = max(1.0, sum(parts))  # a batch counts when it is delivered: it may be made before
        rows.append([part / most for part in parts])
    return [
        Series(stage, f"--c-{stage}", [row[at] for row in rows]) for at, stage in enumerate(stages)
    ]


def _throughput(intervals: Sequence[Interval]) -> list[Series]:
    return [Series("samples/s", "--c-loop", [_samples_per_s(i) for i in intervals])]


def _queue(intervals: Sequence[Interval]) -> list[Series]:
    return [Series("batches ready", "--c-loop", [i.queue_depth for i in intervals])]


def _cpu(intervals: Sequence[Interval]) -> list[Series]:
    waits: list[float | None] = [sum(row.cpu_wait or 0.0 for row in i.workers) for i in intervals]
    return [
        Series("workers together", "--c-fetch", [workers_cpu(i) for i in intervals]),
        Series("training process", "--c-collate", [i.consumer_cpu for i in intervals]),
        Series("workers that wait for a CPU", "--c-wait", waits),
    ]


def _memory(intervals: Sequence[Interval]) -> list[Series]:
    workers = [float(rss_bytes(i) - i.consumer_rss_bytes) for i in intervals]
    return [
        Series("workers together", "--c-fetch", workers),
        Series("training process", "--c-collate", [float(i.consumer_rss_bytes) for i in intervals]),
    ]


def _samples_per_s(interval: Interval) -> float:
    return _share(interval.totals.samples, interval)


_QUESTIONS = (
    _Question(
        "Was training waiting for data?",
        "What the training process spent its time on. Triangles and lines are events.",
        _training_time,
        unit="%",
        stacked=True,
        marked=True,
    ),
    _Question(
        "Throughput",
        "Samples a second that reached the training loop.",
        _throughput,
        _samples_per_s,
    ),
    _Question(
        "Queue depth",
        "Batches ready when the training loop asked for one.",
        _queue,
        lambda interval: interval.queue_depth,
    ),
    _Question(
        "What workers did",
        "Of all workers' time; the rest is idle. A batch counts when it is delivered.",
        _worker_time,
        unit="%",
        stacked=True,
    ),
    _Question(
        "CPUs used",
        "By all processes of the loader. The dashed line: CPUs that there are.",
        _cpu,
        lambda interval: interval.consumer_cpu + workers_cpu(interval),
        limited=True,
    ),
    _Question(
        "Memory",
        "Resident; pages that processes share count in each.",
        _memory,
        lambda interval: float(rss_bytes(interval)),
        unit="B",
    ),
)
_LEGEND = (
    ("restart", "worker restarted"),
    ("skipped", "sample skipped"),
    ("replaced", "sample replaced"),
    ("warning", "warning"),
    ("epoch_begin", "epoch begins"),
)


def _swatch(run: int) -> str:
    return f'<i class="area" style="background:var(--c-run-{run})"></i>'


def _key(name: str, color: str, shape: str = "area") -> str:
    return f'<span><i class="{shape}" style="background:var({color})"></i>{escape(name)}</span>'
