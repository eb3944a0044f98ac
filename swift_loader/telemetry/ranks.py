"""Ranks beside each other: which one waits for data, for which stage, and makes the others wait.

Ranks that train together step together: while one waits for its data, the others wait for it in the
exchange of gradients, which counts as their training loop. So the rank to look at is the one that
waits more than the others do. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
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


def compare(rows: Sequence[RankRow]) -> tuple[int | None, str]:
    """The rank that makes the others wait, if one does, and a sentence."""
    if not rows:
        return None, "No rank has told anything."
    slow = max(rows, key=lambda row: row.wait_share)
    others = [row.wait_share for row in rows if row is not slow]
    usual = median(others) if others else slow.wait_share
    if slow.wait_share < _WAITS:
        most = f"{slow.wait_share:.1%} of its time at most"
        return None, f"No rank waits for data for long: {most} (rank {slow.rank})."
    if slow.wait_share > _TIMES * usual and slow.wait_share > usual + _MORE:
        return slow.rank, (
            f"Rank {slow.rank} makes the others wait: it waited for data {slow.wait_share:.0%} of "
            f"its time ({slow.bottleneck}), the others {usual:.0%}."
        )
    least = min(row.wait_share for row in rows)
    return None, f"All ranks wait for data alike: {least:.0%} to {slow.wait_share:.0%} of the time."


@dataclass(frozen=True)
class RanksStats:
    """The stats of all consumers, in the order of their ranks. It prints as a table."""

    ranks: tuple[LoaderStats, ...]

    @property
    def slow_rank(self) -> int | None:
        """The rank that makes the others wait. None if no single one does."""
        return compare(self.rows())[0]

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
        return {"verdict": self.verdict, "slow_rank": self.slow_rank, **asdict(self)}

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
