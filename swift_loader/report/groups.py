"""Which runs are ranks of one training, and which of them makes the others wait. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from swift_loader.report.runs import Run
from swift_loader.telemetry.ranks import RankRow, compare

__all__ = ["compared", "trainings"]

_TOGETHER_S = 600.0  # ranks of one training start within so long of each other


def trainings(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs of several consumers with the same plan that began together, in the order of ranks."""
    groups: list[list[Run]] = []
    for run in sorted(runs, key=_started):
        for group in groups:
            first = group[0]
            if (
                run.header.get("plan") == first.header.get("plan")
                and _started(run) - _started(first) < _TOGETHER_S
                and all(_consumer(run) != _consumer(other) for other in group)
            ):
                group.append(run)
                break
        else:
            groups.append([run])
    return [sorted(group, key=_consumer) for group in groups if len(group) > 1]


def compared(group: Sequence[Run]) -> tuple[str, list[list[str]]]:
    """A sentence about the ranks of one training, and a table of them, head first."""
    rows = [
        RankRow(
            _consumer(run),
            run.totals.wait_share,
            run.verdict.bottleneck,
            run.totals.samples / run.totals.elapsed_s if run.totals.elapsed_s > 0 else 0.0,
        )
        for run in group
    ]
    slow, sentence = compare(rows)
    table = [["rank", "waited for data", "samples/s", "restarts", "bottleneck"]]
    table += [
        [
            f"{row.rank}" + (" (slow)" if row.rank in slow else ""),
            f"{row.wait_share:.1%}",
            f"{row.samples_per_s:,.0f}",
            f"{run.event_counts['restart']:,}",
            row.bottleneck,
        ]
        for row, run in zip(rows, group, strict=True)
    ]
    return sentence, table


def _started(run: Run) -> float:
    return float(run.header.get("started_at") or 0.0)


def _consumer(run: Run) -> int:
    return int(run.header.get("consumer") or 0)
