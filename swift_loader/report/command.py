"""``swift-loader report run.jsonl [more.jsonl] [--html report.html]``: what a benchmark file tells.

Was training waiting for data, and when; each stage's share; queue depth, throughput, memory and CPU
over time; restarts and bad samples on the time line; several runs beside each other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from swift_loader.report.page import html_page
from swift_loader.report.runs import read_runs
from swift_loader.report.terminal import terminal_text

__all__ = ["report_main"]


def report_main(argv: Sequence[str]) -> int:
    """Read benchmark files, print the report, and with ``--html`` write it as one page too.

    Returns 0, or 1 with a line on stderr when a file can't be read or written, or holds no run.
    Wrong arguments end in argparse's `SystemExit` with 2. `argv` without the program's name.
    """
    parser = argparse.ArgumentParser(
        prog="swift-loader report",
        description="What the files of the option benchmark_file tell about runs.",
    )
    parser.add_argument("files", nargs="+", metavar="run.jsonl", help="benchmark files, or logs")
    parser.add_argument("--html", metavar="FILE", help="write a page to look at in a browser")
    arguments = parser.parse_args(argv)
    try:
        runs, passed_over = read_runs(arguments.files)
        if not runs:
            return _fail(f"no run is in {', '.join(arguments.files)}: is it a benchmark_file?")
        _write(terminal_text(runs, passed_over))
        if arguments.html:
            Path(arguments.html).write_text(html_page(runs, passed_over), encoding="utf-8")
            _write(f"\nThe page: {arguments.html}\n")
    except OSError as error:
        return _fail(str(error))
    return 0


def _fail(text: str) -> int:
    sys.stderr.write(f"swift-loader report: {text}\n")
    return 1


def _write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
