"""What a run's cache did, in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

from swift_loader.report.runs import Run
from swift_loader.telemetry.cache_stats import CacheStats
from swift_loader.telemetry.printable import printable
from swift_loader.telemetry.units import format_bytes, format_seconds

__all__ = ["cache_of", "cache_rows", "cache_table"]


def cache_of(run: Run) -> CacheStats | None:
    """What the summary of `run` says of its cache; None where it had none, or has no summary."""
    told = (run.summary or {}).get("cache")
    if not isinstance(told, Mapping):
        return None
    names = [field.name for field in fields(CacheStats)]
    return CacheStats(**{name: told[name] for name in names if _is_number(told.get(name))})


def cache_rows(found: CacheStats) -> list[tuple[str, str]]:
    """Names and values."""
    asked = found.hits + found.misses
    rows = [
        ("were there", f"{found.hit_rate:.1%} of {asked:,.0f} samples"),
        ("read from it", format_bytes(found.hit_bytes)),
        ("work saved", format_seconds(found.saved_s)),
        ("memory", _full(found.memory_used, found.memory_size)),
        ("evicted", f"{found.evicted:,.0f}"),
        ("found no room", f"{found.refused:,.0f}"),
    ]
    if found.disk_used or found.disk_hits:
        rows.insert(4, ("files", _full(found.disk_used, found.disk_size)))
        rows.insert(1, ("of these in files", f"{found.disk_hits:,.0f}"))
    return rows


def cache_table(runs: Sequence[Run]) -> list[list[str]]:
    """A column for each run that had a cache, head first; empty where none had one."""
    told = [(run.label, dict(cache_rows(found))) for run in runs if (found := cache_of(run))]
    names: dict[str, None] = {}
    for _, rows in told:
        names |= dict.fromkeys(rows)
    if not told:
        return []
    head = ["", *(printable(label) for label, _ in told)]
    return [head, *([name, *(rows.get(name, "-") for _, rows in told)] for name in names)]


def _full(used: float, size: float | None) -> str:
    if not size:
        return format_bytes(used) if used else "-"
    return f"{format_bytes(used)} of {format_bytes(size)} ({used / size:.0%})"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
