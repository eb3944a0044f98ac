"""Figures as text: a wide table of rates, and a list of figures beside their bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.contestants import CONTESTANTS, LIMIT
from benchmarks.figures import Figure
from benchmarks.rounds import Rounds
from benchmarks.spread import spread


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up in a terminal too."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def rates(rounds: Mapping[str, Rounds]) -> str:
    """Batches a second, median of the rounds with quartiles: contestants down, workloads across."""
    names = [
        name
        for name in [*CONTESTANTS, LIMIT]
        if any(name in r.answers or name in r.failures for r in rounds.values())
    ]
    rows = [[name, *(_rate(r, name) for r in rounds.values())] for name in names]
    return markdown(["batches/s", *rounds], rows)


def _rate(rounds: Rounds, contestant: str) -> str:
    if contestant in rounds.failures:
        return "failed"
    column = rounds.column(contestant, "batches_per_s")
    return str(spread(column)) if column else ""


def figures(measured: Sequence[Figure]) -> str:
    """Every figure in a line: median and quartiles, the bar and whether it is met."""
    rows = [
        [
            figure.measurement,
            figure.what,
            f"{figure.value} {figure.unit}",
            figure.bar_text,
            figure.met_text,
            figure.ours,
            figure.theirs,
        ]
        for figure in measured
    ]
    return markdown(
        ["measurement", "what", "median (quartiles)", "bar", "", "ours", "theirs"], rows
    )
