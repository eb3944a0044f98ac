"""The page of `report`: one HTML file that needs nothing else and runs nothing. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from swift_loader.report.facts import comparison
from swift_loader.report.groups import compared, trainings
from swift_loader.report.kept import cache_table
from swift_loader.report.plots import time_line
from swift_loader.report.runs import Run, waiting
from swift_loader.report.style import CSS
from swift_loader.report.terminal import clock, describe_event
from swift_loader.telemetry.printable import printable
from swift_loader.telemetry.stats import STAGES, Totals, is_measured, shares
from swift_loader.telemetry.units import format_bytes, format_seconds

__all__ = ["html_page"]

_EVENTS = 200  # at most, in one table
_CARDS = 4  # of so many runs all are shown at once
_ZOOMS = (1, 4, 16)
_TIMES = (("mean_s", "mean"), ("p50_s", "p50"), ("p99_s", "p99"), ("max_s", "longest"))


def html_page(runs: Sequence[Run], passed_over: int = 0) -> str:
    """The whole page, as text."""
    title = printable(runs[0].label) if len(runs) == 1 else f"{len(runs)} runs"
    body = [f"<h1>What the loader did <small>{escape(title)}</small></h1>"]
    body += [_ranks_card(group) for group in trainings(runs)]
    cards = [_run_card(run) for run in runs]
    body.append(f'<div class="runs">{"".join(cards[:_CARDS])}</div>')
    if len(cards) > _CARDS:
        rest = f'<div class="runs">{"".join(cards[_CARDS:])}</div>'
        body.append(f"<details><summary>{len(cards) - _CARDS} more</summary>{rest}</details>")
    if len(runs) > 1:
        body.append(f"<h2>Side by side</h2>{_table(comparison(runs))}")
    body += [_zoom_buttons(), time_line(runs)]
    body.append(f"<h2>Each stage's share</h2>{_stage_table(runs)}")
    body.append(
        '<p class="note">Of the time of all workers for what workers do, of the time in epochs '
        "for the rest.</p>"
    )
    kept = cache_table(runs)
    if kept:
        body.append(f"<h2>What the cache did</h2>{_table(kept)}")
    body += [_details(run, len(runs) > 1) for run in runs]
    if passed_over:
        body.append(
            f'<p class="note">{passed_over} lines were cut short or are no lines of a benchmark '
            "file.</p>"
        )
    return _PAGE.format(title=escape(title), css=CSS, body="\n".join(body))


def _zoom_buttons() -> str:
    # Radio buttons before all else, and labels for them: the style sheet does the rest.
    inputs = "".join(
        f'<input class="zoom" type="radio" name="zoom" id="zoom-{times}"'
        f"{' checked' if times == 1 else ''}>"
        for times in _ZOOMS
    )
    labels = "".join(f'<label for="zoom-{times}">{times}×</label>' for times in _ZOOMS)
    return f'{inputs}<div class="zooms">Time line {labels}</div>'


def _ranks_card(group: Sequence[Run]) -> str:
    sentence, table = compared(group)
    most = max(run.totals.wait_share for run in group)
    return (
        f'<section class="card ranks {_level(most)}"><h3>All {len(group)} ranks</h3>'
        f'<p class="verdict">{escape(sentence)}</p>{_table(table)}</section>'
    )


def _level(wait_share: float) -> str:
    return "good" if wait_share < 0.1 else "poor" if wait_share < 0.3 else "bad"


def _run_card(run: Run) -> str:
    totals = run.totals
    elapsed_s = totals.elapsed_s or 1.0
    tiles = (
        ("waited for data", f"{totals.wait_share:.1%}"),
        ("samples/s", f"{totals.samples / elapsed_s:,.0f}"),
        ("data", f"{format_bytes(totals.nbytes / elapsed_s)}/s"),
        ("bottleneck", run.verdict.bottleneck),
    )
    tile_html = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in tiles
    )
    parts = [
        f'<section class="card {_level(totals.wait_share)}"><h3>{_text(run.label)}</h3>'
        f'<p class="verdict">{escape(run.verdict.sentence)}</p>'
        f'<dl class="tiles">{tile_html}</dl>'
    ]
    if run.verdict.advice:
        parts.append(f"<p>{_code(run.verdict.advice)}</p>")
    stretches = waiting(run)[:3]
    if stretches:
        told = "; ".join(
            f"{clock(s.from_s)} to {clock(s.t_s)} ({format_seconds(s.waited_s)}, {s.bottleneck})"
            for s in stretches
        )
        parts.append(f"<p>Waited most: {escape(told)}.</p>")
    if run.summary is None:
        parts.append("<p>It has no summary: the process was killed, or is still running.</p>")
    return "".join(parts) + "</section>"


def _stage_table(runs: Sequence[Run]) -> str:
    head = "".join(f'<th scope="col">{_text(run.label)}</th>' for run in runs)
    per_run = [(run.totals, shares(run.totals)) for run in runs]

    def spent(totals: Totals, stage: str) -> str:
        return format_seconds(getattr(totals, f"{stage}_s"))

    body = []
    for stage, (_, text) in STAGES.items():
        if not any(is_measured(stage, getattr(totals, f"{stage}_s")) for totals, _ in per_run):
            continue
        cells = "".join(
            f'<td><span class="bar"><i style="width:{min(1.0, share[stage]):.1%}"></i></span>'
            f"{share[stage]:.1%} <small>{spent(totals, stage)}</small></td>"
            for totals, share in per_run
        )
        body.append(f'<tr><th scope="row">{escape(text)}</th>{cells}</tr>')
    return (
        f'<div class="scroll"><table><thead><tr><th scope="col">stage</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _details(run: Run, several: bool) -> str:
    parts = []
    if run.summary is not None:
        parts.append(f"<h3>How long a batch took in each stage</h3>{_table(_times(run.summary))}")
    if run.slowest:
        rows = [["sample", "took"]]
        rows += [[printable(index), format_seconds(seconds)] for index, seconds in run.slowest]
        parts.append(f"<h3>Slowest samples</h3>{_table(rows)}")
    if run.intervals and run.intervals[-1].workers:
        rows = [["worker", "pid", "batches", "mean CPU", "waits for a CPU", "peak memory"]]
        rows += [_worker_row(run, row.worker) for row in run.intervals[-1].workers]
        parts.append(f"<h3>Workers</h3>{_table(rows)}")
    told = [event for event in run.events if event.kind not in ("epoch_begin", "epoch_end")]
    if told:
        rows = [["at", "what"]]
        rows += [[clock(event.t_s), describe_event(event)] for event in told[:_EVENTS]]
        if len(told) > _EVENTS:
            rows.append(["", f"and {len(told) - _EVENTS} more"])
        parts.append(f"<h3>Events</h3>{_table(rows)}")
    for name in ("plan", "options", "host"):
        facts = run.header.get(name)
        if facts:
            rows = [["name", "value"], *([key, _plain(value)] for key, value in facts.items())]
            parts.append(f"<h3>{name.capitalize()}</h3>{_table(rows)}")
    opened = "" if several else " open"
    title = f"Details of {_text(run.label)}"
    return f"<details{opened}><summary>{title}</summary>{''.join(parts)}</details>"


def _times(summary: Any) -> list[list[str]]:
    rows = [["stage", *(name for _, name in _TIMES)]]
    for stage, (_, text) in STAGES.items():
        told = summary.get("stages", {}).get(stage, {})
        if not is_measured(stage, told.get("total_s", 0.0)):
            continue
        rows.append(
            [text, *(format_seconds(told[key]) if key in told else "-" for key, _ in _TIMES)]
        )
    return rows


def _worker_row(run: Run, worker: int) -> list[str]:
    uses = [(i, row) for i in run.intervals for row in i.workers if row.worker == worker]

    def mean(what: str) -> str:
        timed = [(getattr(row, what), i.duration_s) for i, row in uses]
        known = [(used, duration_s) for used, duration_s in timed if used is not None]
        whole_s = sum(duration_s for _, duration_s in known)
        return f"{sum(u * d for u, d in known) / whole_s:.2f}" if whole_s > 0 else "-"

    peak = max((row.rss_bytes or 0 for _, row in uses), default=0)
    pid = uses[-1][1].pid
    return [
        str(worker),
        "-" if pid is None else str(pid),
        f"{sum(row.batches for _, row in uses):,}",
        mean("cpu"),
        mean("cpu_wait"),
        format_bytes(peak) if peak else "-",
    ]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _table(rows: list[list[str]]) -> str:
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in rows[0])
    body = "".join(
        f'<tr><th scope="row">{_text(row[0])}</th>'
        + "".join(f'<td class="text">{_text(cell, 2000)}</td>' for cell in row[1:])
        + "</tr>"
        for row in rows[1:]
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _text(text: str, at_most: int = 300) -> str:
    # What users name is shown, and obeyed by nobody.
    return escape(printable(text, at_most))


def _code(text: str) -> str:
    # `word` becomes <code>word</code>
    parts = _text(text, 2000).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>swift_loader: {title}</title>
<style>{css}</style>
</head>
<body>
{body}
</body>
</html>
"""
