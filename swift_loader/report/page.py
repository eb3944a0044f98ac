"""The page of `report`: one HTML file that needs nothing else, for light and dark. Pure.

A row of plots a question, a column a run, all with the same axes, so that runs can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from swift_loader.report.plots import plot_rows
from swift_loader.report.runs import Run, waiting
from swift_loader.report.terminal import clock, comparison, describe_event
from swift_loader.telemetry.stats import (
    STAGES,
    Totals,
    format_bytes,
    format_seconds,
    shares,
)

__all__ = ["html_page"]

_EVENTS = 200  # at most, in one table


def html_page(runs: Sequence[Run], passed_over: int = 0) -> str:
    """The whole page, as text."""
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs"
    body = [f"<h1>What the loader did <small>{escape(title)}</small></h1>"]
    body.append(f'<div class="runs">{"".join(_run_card(run) for run in runs)}</div>')
    if len(runs) > 1:
        body.append(f"<h2>Side by side</h2>{_table(comparison(runs))}")
    body += plot_rows(runs)
    body.append(f"<h2>Each stage's share</h2>{_stage_table(runs)}")
    body.append(
        '<p class="note">Of the time of all workers for what workers do, of the time in epochs '
        "for the rest.</p>"
    )
    body += [_details(run, len(runs) > 1) for run in runs]
    if passed_over:
        body.append(
            f'<p class="note">{passed_over} lines were cut short or are no lines of a benchmark '
            "file.</p>"
        )
    return _PAGE.format(title=escape(title), css=_CSS, body="\n".join(body))


def _run_card(run: Run) -> str:
    totals = run.totals
    stop = run.verdict.bottleneck
    level = "good" if totals.wait_share < 0.05 else "poor" if totals.wait_share < 0.3 else "bad"
    elapsed_s = totals.elapsed_s or 1.0
    tiles = (
        ("waited for data", f"{totals.wait_share:.1%}"),
        ("samples/s", f"{totals.samples / elapsed_s:,.0f}"),
        ("data", f"{format_bytes(totals.nbytes / elapsed_s)}/s"),
        ("bottleneck", stop),
    )
    tile_html = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in tiles
    )
    parts = [
        f'<section class="card {level}"><h3>{escape(run.label)}</h3>'
        f'<p class="verdict">{escape(run.verdict.sentence)}</p><dl class="tiles">{tile_html}</dl>'
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
    head = "".join(f'<th scope="col">{escape(run.label)}</th>' for run in runs)
    per_run = [(run.totals, shares(run.totals)) for run in runs]

    def spent(totals: Totals, stage: str) -> str:
        return format_seconds(getattr(totals, f"{stage}_s"))

    body = []
    for stage, (_, text) in STAGES.items():
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
    if run.intervals and run.intervals[-1].workers:
        rows = [["worker", "pid", "batches", "mean CPU", "peak memory"]]
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
    title = f"Details of {escape(run.label)}"
    return f"<details{opened}><summary>{title}</summary>{''.join(parts)}</details>"


def _worker_row(run: Run, worker: int) -> list[str]:
    uses = [(i, row) for i in run.intervals for row in i.workers if row.worker == worker]
    timed = [(row.cpu, i.duration_s) for i, row in uses if row.cpu is not None]
    whole_s = sum(duration_s for _, duration_s in timed)
    cpu = sum(cpu * duration_s for cpu, duration_s in timed) / whole_s if whole_s > 0 else None
    peak = max((row.rss_bytes or 0 for _, row in uses), default=0)
    pid = uses[-1][1].pid
    return [
        str(worker),
        "-" if pid is None else str(pid),
        f"{sum(row.batches for _, row in uses):,}",
        "-" if cpu is None else f"{cpu:.2f}",
        format_bytes(peak) if peak else "-",
    ]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _table(rows: list[list[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in rows[0])
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows[1:]
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _code(text: str) -> str:
    # `word` becomes <code>word</code>
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


_CSS = """
:root{color-scheme:light dark;--page:#fbfbfa;--card:#fff;--ink:#1c1e21;--c-muted:#6a7078;
--rule:#e3e4e6;--c-wait:#d1495b;--c-startup:#e8a33d;--c-loop:#2f7fb8;--c-outside:#d9dce0;
--c-fetch:#2f7fb8;--c-collate:#3a9d7e;--c-encode:#9b6fc4;
--c-restart:#8b1e9b;--c-bad:#b3541e;--c-warning:#c79100}
@media (prefers-color-scheme:dark){:root{--page:#16181b;--card:#1e2125;--ink:#e8e9eb;
--c-muted:#9aa1aa;--rule:#34383e;--c-wait:#ef6f80;--c-startup:#f0b65a;--c-loop:#5aa6dc;
--c-outside:#3b4047;--c-fetch:#5aa6dc;--c-collate:#57bd9c;--c-encode:#b794dd;
--c-restart:#d883e6;--c-bad:#e8894f;--c-warning:#e3b53a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1180px;padding:28px 24px 60px;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:26px;margin:0 0 18px}h1 small{font-weight:400;font-size:16px;color:var(--c-muted);
margin-left:8px;overflow-wrap:anywhere}
h2{font-size:18px;margin:34px 0 2px}h3{font-size:15px;margin:0 0 4px;overflow-wrap:anywhere}
.note{color:var(--c-muted);font-size:13.5px;margin:2px 0 6px}
.runs{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:16px}
.card{background:var(--card);border:1px solid var(--rule);border-left-width:5px;border-radius:8px;
padding:16px 20px}
.card p{margin:8px 0 0}.card .verdict{font-size:18px;margin:2px 0 12px}
.good{border-left-color:var(--c-collate)}.poor{border-left-color:var(--c-startup)}
.bad{border-left-color:var(--c-wait)}
.tiles{display:flex;flex-wrap:wrap;gap:10px 34px;margin:0 0 10px}
.tiles dt{color:var(--c-muted);font-size:12.5px}
.tiles dd{margin:0;font-size:19px;font-weight:600;font-variant-numeric:tabular-nums}
figure{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:8px;
padding:8px 8px 4px;min-width:0}
figcaption{font-size:13px;color:var(--c-muted);padding:0 6px;overflow-wrap:anywhere}
svg{display:block;width:100%;height:auto}
.grid{stroke:var(--rule);stroke-width:1}.tick{fill:var(--c-muted);font-size:12px}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
.limit{stroke:var(--c-muted);stroke-width:1.3;stroke-dasharray:5 4}
.epoch{stroke:var(--ink);stroke-width:1;stroke-dasharray:2 3;opacity:.65}
.hit{fill:transparent}.hit:hover{fill:var(--ink);fill-opacity:.08}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:0 0 8px;font-size:13.5px}
.legend i{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:6px;
vertical-align:-1px}
.legend i.triangle{clip-path:polygon(0 0,100% 0,50% 100%);border-radius:0}
.legend i.line{width:0;border-radius:0;border-left:2px dotted var(--ink)}
.bar{display:inline-block;width:120px;height:10px;border-radius:2px;background:var(--rule);
margin-right:10px}
.bar i{display:block;height:10px;border-radius:2px;background:var(--c-loop)}
td small{color:var(--c-muted)}
.scroll{overflow-x:auto;margin:6px 0 14px}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 18px 5px 0;border-bottom:1px solid var(--rule);
vertical-align:top;overflow-wrap:anywhere}
thead th{color:var(--c-muted);font-weight:600}tbody th{font-weight:400;white-space:nowrap}
details{margin-top:26px;border-top:1px solid var(--rule);padding-top:14px}
summary{cursor:pointer;font-weight:600;font-size:18px;margin-bottom:12px}
code{font:13px ui-monospace,monospace}
"""

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
