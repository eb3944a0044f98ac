"""One line of the doctor's report, and how lines are shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

__all__ = ["Finding", "text_of"]


@dataclass(frozen=True)
class Finding:
    """What was found; `advice` where it stands in the way, and `broken` where nothing works."""

    group: str
    name: str
    value: str
    advice: str = ""
    broken: bool = False


def text_of(findings: Iterable[Finding]) -> str:
    """The report: a heading for each group, a mark at each line that wants a look."""
    lines: list[str] = []
    for group, members in groupby(findings, lambda finding: finding.group):
        lines += ["", group] if lines else [group]
        for one in members:
            mark = "!!" if one.broken else "! " if one.advice else "  "
            lines.append(f"{mark}{one.name:<26} {one.value}")
            if one.advice:
                lines.append(f"{'':<29}{one.advice}")
    return "\n".join(lines) + "\n"
