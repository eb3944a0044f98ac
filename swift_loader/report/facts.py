"""What tells runs apart: a row of the comparison for each fact, a column for each run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swift_loader.report.runs import Interval, Run, workers_cpu
from swift_loader.telemetry.printable import printable
from swift_loader.telemetry.units import format_bytes, format_seconds

__all__ = ["FACTS", "Fact", "comparison"]

Number = Callable[[Run], float]


@dataclass(frozen=True)
class Fact:
    """One fact of a run.

    `change`: how that of a second run differs from that of a first one; empty: that says nothing.
    """

    name: str
    text: Callable[[Run], str]
    change: Callable[[Run, Run], str]


def comparison(runs: Sequence[Run]) -> list[list[str]]:
    """A table, head first. Of two runs, the last column is the change from the first one."""
    rows = [["", *(printable(run.label) for run in runs)]]
    rows += [[fact.name, *(fact.text(run) for run in runs)] for fact in FACTS]
    if len(runs) == 2:
        first, second = runs
        rows[0].append("change")
        for row, fact in zip(rows[1:], FACTS, strict=True):
            row.append(fact.change(first, second))
    return rows


def _ratio(number: Number) -> Callable[[Run, Run], str]:
    def change(first: Run, second: Run) -> str:
        before, after = number(first), number(second)
        return f"{after / before - 1:+.1%}" if before > 0 else ""

    return change


def _more(number: Number) -> Callable[[Run, Run], str]:
    def change(first: Run, second: Run) -> str:
        more = number(second) - number(first)
        return f"{more:+,.0f}" if more else "the same"

    return change


def _points(number: Number) -> Callable[[Run, Run], str]:
    """Of shares: percentage points."""
    return lambda first, second: f"{100 * (number(second) - number(first)):+.1f} points"


def _rate(amount: Number) -> Number:
    def rate(run: Run) -> float:
        elapsed_s = run.totals.elapsed_s
        return amount(run) / elapsed_s if elapsed_s > 0 else 0.0

    return rate


def _count(*kinds: str) -> Number:
    return lambda run: sum(run.event_counts[kind] for kind in kinds)


def _mean_depth(run: Run) -> float:
    totals = run.totals
    return totals.queue_depth / totals.batches if totals.batches else 0.0


def _mean_cpu(run: Run) -> float:
    intervals: Sequence[Interval] = run.intervals
    duration_s = sum(interval.duration_s for interval in intervals)
    cpu_s = sum((i.consumer_cpu + workers_cpu(i)) * i.duration_s for i in intervals)
    return cpu_s / duration_s if duration_s > 0 else 0.0


def _relative(name: str, number: Number, text: Callable[[float], str]) -> Fact:
    return Fact(name, lambda run: text(number(run)), _ratio(number))


def _known(form: str) -> Callable[[float], str]:
    return lambda number: format(number, form) if number else "-"


def _whole(name: str, number: Number) -> Fact:
    return Fact(name, lambda run: f"{number(run):,.0f}", _more(number))


def _waited(run: Run) -> float:
    return run.totals.wait_share


#: in the order in which they are shown
FACTS: tuple[Fact, ...] = (
    Fact("waited for data", lambda run: f"{_waited(run):.1%}", _points(_waited)),
    Fact("bottleneck", lambda run: run.verdict.bottleneck, lambda first, second: ""),
    _relative("samples/s", _rate(lambda run: run.totals.samples), lambda rate: f"{rate:,.0f}"),
    _relative("batches/s", _rate(lambda run: run.totals.batches), lambda rate: f"{rate:,.1f}"),
    _relative(
        "bytes/s", _rate(lambda run: run.totals.nbytes), lambda rate: f"{format_bytes(rate)}/s"
    ),
    _whole("batches", lambda run: run.totals.batches),
    _whole("samples", lambda run: run.totals.samples),
    _relative("time in epochs", lambda run: run.totals.elapsed_s, format_seconds),
    _relative("wait for first batch", lambda run: run.totals.startup_s, format_seconds),
    _relative("mean queue depth", _mean_depth, _known(".1f")),
    _relative("mean CPUs used", _mean_cpu, _known(".2f")),
    _relative("peak memory", lambda run: run.peak_rss_bytes, format_bytes),
    _whole("restarts", _count("restart")),
    _whole("skipped, replaced", _count("skipped", "replaced")),
)
