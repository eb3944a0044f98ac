"""Ranks beside each other: which one waits for data, for which stage, and makes the others wait.

Ranks that train together step together: while one waits for its data, the others wait for it in the
exchange of gradients, which counts as their training loop. So the ranks to look at are those that
wait more than the others do: one, or all of a node whose storage is slow. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from swift_loader.telemetry.html import table
from swift_loader.telemetry.printable import printable
from swift_loader.telemetry.stats import LoaderStats

__all__ = ["RankRow", "RanksStats", "compare"]

_WAITS = 0.1  # as in the verdict of a single loader
_MORE = 0.05  # of the time: what a rank must wait more than the others
_TIMES = 2.0  # and how many times as much
_ROWS = 32


@dataclass(frozen=True)
class RankRow:
    """The figures of one rank that are compared."""

    rank: int
    wait_share: float
    bottleneck: str
    samples_per_s: float


def compare(rows: Sequence[RankRow]) -> tuple[tuple[int, ...], str]:
    """The ranks that make the others wait, the slowest first, and a sentence."""
    if not rows:
        return (), "No rank has told anything."
    by_share = sorted(rows, key=lambda row: row.wait_share)
    slow = by_share[-1]
    if slow.wait_share < _WAITS:
        most = f"{slow.wait_share:.1%} of its time at most"
        return (), f"No rank waits for data for long: {most} (rank {slow.rank})."
    # The widest gap between neighbours parts the slow ranks from the others.
    gaps = [b.wait_share - a.wait_share for a, b in pairwise(by_share)]
    at = 1 + max(range(len(gaps)), key=gaps.__getitem__) if gaps else 0
    slower = by_share[at:][::-1]
    usual = median(row.wait_share for row in by_share[:at]) if at else slow.wait_share
    if slower[-1].wait_share <= max(_TIMES * usual, usual + _MORE):
        shares = f"{by_share[0].wait_share:.0%} to {slow.wait_share:.0%}"
        return (), f"All ranks wait for data alike: {shares} of the time."
    named = tuple(row.rank for row in slower)
    if len(named) == 1:
        return named, (
            f"Rank {slow.rank} makes the others wait: it waited for data {slow.wait_share:.0%} of "
            f"its time ({slow.bottleneck}), the others {usual:.0%}."
        )
    return named, (
        f"Ranks {_listed(named)} make the others wait: they waited for data "
        f"{slower[-1].wait_share:.0%} to {slow.wait_share:.0%} of their time ({slow.bottleneck}), "
        f"the others {usual:.0%}."
    )


def _listed(ranks: Sequence[int]) -> str:
    """``0, 2 to 5 and 9``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [
        f"{run[0]} to {run[-1]}" if len(run) > 2 else " and ".join(map(str, run)) for run in runs
    ]
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


@dataclass(frozen=True)
class RanksStats:
    """The stats of all consumers, in the order of their ranks. It prints as a table."""

    ranks: tuple[LoaderStats, ...]

    @property
    def slow_ranks(self) -> tuple[int, ...]:
        """The ranks that make the others wait, the slowest first; none if all wait alike."""
        return compare(self.rows())[0]

    @property
    def slow_rank(self) -> int | None:
        """The first of `slow_ranks`; None if there is none."""
        return next(iter(self.slow_ranks), None)

    @property
    def verdict(self) -> str:
        """Who waits, and for what, in a sentence."""
        return compare(self.rows())[1]

    def rows(self) -> list[RankRow]:
        """A row for each rank."""
        return [
            RankRow(stats.consumer, stats.wait_share, stats.bottleneck, stats.samples_per_s)
            for stats in self.ranks
        ]

    def as_dict(self) -> dict[str, Any]:
        """The same as plain dicts, lists and numbers."""
        slow = {"slow_rank": self.slow_rank, "slow_ranks": list(self.slow_ranks)}
        return {"verdict": self.verdict, **slow, **asdict(self)}

    def _repr_html_(self) -> str:
        rows: list[tuple[object, ...]] = [("rank", "waited", "samples/s", "restarts", "bottleneck")]
        rows += [
            (
                stats.consumer,
                f"{stats.wait_share:.1%}",
                f"{stats.samples_per_s:,.0f}",
                stats.restarts,
                stats.bottleneck,
            )
            for stats in self.ranks
        ]
        return table(f"swift_loader, {len(self.ranks)} ranks", self.verdict, rows)

    def __repr__(self) -> str:
        lines = [f"swift_loader, {len(self.ranks)} ranks", f"  {self.verdict}"]
        lines.append(f"  {'rank':<6}{'waited':>8}{'samples/s':>12}{'restarts':>10}  bottleneck")
        for stats in self.ranks[:_ROWS]:
            lines.append(
                f"  {stats.consumer:<6}{stats.wait_share:>8.1%}{stats.samples_per_s:>12,.0f}"
                f"{stats.restarts:>10}  {printable(stats.bottleneck)}"
            )
        if len(self.ranks) > _ROWS:
            lines.append(f"  and {len(self.ranks) - _ROWS} ranks more, see .ranks")
        return "\n".join(lines)
