"""The table of figures in docs/metrics.md, made of their definitions.

python scripts/metrics_table.py            says whether the table is what the definitions give
python scripts/metrics_table.py --write    writes it
"""

from __future__ import annotations

import sys
from pathlib import Path

from swift_loader.telemetry.figures import FIGURES

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"


def table() -> str:
    """The table as Markdown."""
    lines = ["| name | kind | unit | label | meaning |", "|---|---|---|---|---|"]
    lines += [
        f"| `{one.name}` | {one.kind} | {one.unit} | {one.label} | {one.text} |"
        for one in FIGURES.values()
    ]
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with the table of now."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table() + END + after


def main(arguments: list[str]) -> int:
    now = PAGE.read_text()
    right = with_table(now)
    if arguments == ["--write"]:
        PAGE.write_text(right)
    elif right != now:
        sys.stderr.write("docs/metrics.md has not the table that swift_loader/telemetry/figures.py "
                         "defines: run scripts/metrics_table.py --write\n")  # fmt: skip
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
