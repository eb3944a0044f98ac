"""README's table of options, made of their definitions.

python scripts/options_table.py            says whether the table is what the definitions give
python scripts/options_table.py --write    writes it
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from swift_loader.loader.names import ALIASES
from swift_loader.loader.options import definitions

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- --8<-- [start:options] -->\n", "\n| call | meaning |"


def table() -> str:
    """The table as Markdown."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for group, options in groupby(definitions(), lambda option: option.group):
        lines.append(f"| **{group}** | | |")
        lines += [f"| `{one.name}` | {one.shown} | {one.text} |" for one in options]
    lines += ["", "| other name | option | |", "|---|---|---|"]
    lines += [f"| `{one.name}` | `{one.own}` | {one.text} |" for one in ALIASES.values()]
    return "\n".join(lines) + "\n"


def with_table(readme: str) -> str:
    """The README with the table of now."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table() + END + after


def main(arguments: list[str]) -> int:
    now = README.read_text()
    right = with_table(now)
    if arguments == ["--write"]:
        README.write_text(right)
    elif right != now:
        sys.stderr.write("README's table of options is not what swift_loader/loader/options.py "
                         "defines: run scripts/options_table.py --write\n")  # fmt: skip
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
