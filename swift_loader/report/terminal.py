"""The terminal form of `report`: plain text, 100 columns, no escape codes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from swift_loader.report.facts import FACTS, comparison
from swift_loader.report.groups import compared, trainings
from swift_loader.report.kept import cache_of, cache_rows
from swift_loader.report.runs import Event, Run, merge, waiting, workers_cpu
from swift_loader.telemetry.printable import printable
from swift_loader.telemetry.stats import STAGES, is_measured, shares
from swift_loader.telemetry.units import format_seconds

__all__ = ["clock", "describe_event", "terminal_text"]

_LINE = 60  # columns of a time line
_BLOCKS = " ▁▂▃▄▅▆▇█"
_EVENTS_SHOWN = 20


def terminal_text(runs: Sequence[Run], passed_over: int = 0) -> str:
    """The whole report, one part a run, and a table of all where there are several."""
    parts = ["\n".join(_run_lines(run)) for run in runs]
    for group in trainings(runs):
        sentence, table = compared(group)
        lines = wrap(sentence, 97, initial_indent="   ", subsequent_indent="   ")
        parts.append("\n".join([f"== All {len(group)} ranks", *lines, *_table(table)]))
    if len(runs) > 1:
        parts.append("\n".join(_table(comparison(runs))))
    if passed_over:
        parts.append(f"{passed_over} lines were cut short or are no lines of a benchmark file.")
    return "\n\n".join(parts) + "\n"


def describe_event(event: Event) -> str:
    """One event in words."""
    facts = event.facts
    known = {
        "epoch_begin": "epoch {epoch} begins",
        "epoch_end": "epoch {epoch} ends",
        "worker_start": "worker {worker} started (pid {pid})",
        "worker_stop": "worker {worker} stopped",
        "restart": "worker {worker} restarted (now pid {pid})",
        "skipped": "sample {index} skipped",
        "replaced": "sample {index} replaced",
        "warning": "warning: {text}",
    }
    try:
        text = known[event.kind].format(**facts)
    except KeyError:
        text = event.kind + "".join(f", {name} {value}" for name, value in facts.items())
    why = facts.get("why")
    return printable(f"{text}: {why}" if why and event.kind in known else text, 2000)


def _run_lines(run: Run) -> list[str]:
    totals = run.totals
    header, host = run.header, run.header.get("host", {})
    lines = [f"== {printable(run.label)}"]
    if host:
        lines.append(
            f"   swift_loader {header.get('version')}, Python {host.get('python')}, torch "
            f"{host.get('torch')}, {host.get('nb_cpus')} CPUs, {host.get('name')}"
        )
    if run.summary is None:
        lines.append("   It has no summary: the process was killed, or is still running.")
    lines += ["", *(f"   {line}" for line in wrap(run.verdict.sentence, 97))]
    lines += [f"   {line}" for line in wrap(run.verdict.advice, 97)]
    for stretch in waiting(run)[:3]:
        lines.append(
            f"   Waited {format_seconds(stretch.waited_s)} between {clock(stretch.from_s)} and "
            f"{clock(stretch.t_s)} ({stretch.bottleneck})."
        )
    lines.append("")
    lines += [f"   {fact.name:<22}{fact.text(run)}" for fact in FACTS[2:]]
    lines.append("")
    share = shares(totals)
    for stage, (_, text) in STAGES.items():
        if not is_measured(stage, getattr(totals, f"{stage}_s")):
            continue
        bar = "█" * round(30 * min(1.0, share[stage]))
        lines.append(f"   {text:<20}{share[stage]:>7.1%}  {bar}")
    kept = cache_of(run)
    if kept is not None:
        lines += ["", "   Cache", *(f"   {name:<22}{text}" for name, text in cache_rows(kept))]
    lines += ["", *_time_lines(run), *_event_lines(run)]
    return lines


def _time_lines(run: Run) -> list[str]:
    intervals = merge(run.intervals, _LINE)
    if not intervals:
        return []
    rates = [interval.totals.samples / (interval.duration_s or 1.0) for interval in intervals]
    depths = [interval.queue_depth or 0.0 for interval in intervals]
    cpus = [interval.consumer_cpu + workers_cpu(interval) for interval in intervals]
    waits = [interval.totals.wait_share for interval in intervals]
    width = len(intervals)
    end = clock(intervals[-1].t_s)
    return [
        f"   {'waited':<14}{_spark(waits, 1.0)}  of 100%",
        f"   {'samples/s':<14}{_spark(rates, max(rates))}  of {max(rates):,.0f}",
        f"   {'queue depth':<14}{_spark(depths, max(depths))}  of {max(depths):.1f}",
        f"   {'CPUs used':<14}{_spark(cpus, max(cpus))}  of {max(cpus):.2f}",
        f"   {'':<14}0{end:>{max(len(end) + 1, width - 1)}}",
    ]


def _event_lines(run: Run) -> list[str]:
    told = [event for event in run.events if event.kind not in _QUIET]
    if not told:
        return []
    lines = ["", "   Events"]
    lines += [
        f"   {clock(event.t_s):>9}  {describe_event(event)}" for event in told[:_EVENTS_SHOWN]
    ]
    if len(told) > _EVENTS_SHOWN:
        lines.append(f"   and {len(told) - _EVENTS_SHOWN} more")
    return lines


_QUIET = ("epoch_begin", "epoch_end", "worker_start", "worker_stop")


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "   "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _spark(values: Sequence[float], top: float) -> str:
    if top <= 0:
        return _BLOCKS[0] * len(values)
    steps = len(_BLOCKS) - 1
    # A value that is not zero is never drawn as nothing.
    levels = [min(steps, max(round(steps * v / top), 1 if v > 0 else 0)) for v in values]
    return "".join(_BLOCKS[level] for level in levels)


def clock(seconds: float) -> str:
    """``0:07.2``, ``12:40``, ``3:05:00``: a place on the time line."""
    if round(seconds, 1) < 60:
        return f"0:{seconds:04.1f}"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
