"""``swift-loader top [PLACE...]``: a live table, by rich; once with ``--once``."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from swift_loader.errors import ConfigError
from swift_loader.telemetry.printable import printable
from swift_loader.top.places import latest_file, looks_of
from swift_loader.top.tables import Table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["top"]


def top(argv: Sequence[str], console: Console | None = None) -> int:
    """Show the places until Ctrl-C, or once. Returns 0. Raises `ConfigError`."""
    parser = argparse.ArgumentParser(
        prog="swift-loader top",
        description="What runs now: ranks, workers, queues, cache, endpoints, trainings on a "
        "producer.",
    )
    parser.add_argument(
        "places",
        nargs="*",
        metavar="PLACE",
        help="benchmark files; prometheus://HOST:PORT, where metrics= or --metrics serves a page; "
        "tcp://HOST:PORT, an endpoint (default: the benchmark file of this folder that was written "
        "last)",
    )
    parser.add_argument("--every", type=_seconds, default=1.0, help="seconds between looks (1)")
    parser.add_argument("--once", action="store_true", help="show it once, and end")
    parser.add_argument("--key", help="the key file of endpoints")
    options = parser.parse_args(argv)
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError as error:
        raise ConfigError("top needs a package: pip install 'swift-loader[console]'") from error
    looks = looks_of(options.places or [latest_file(Path.cwd())], options.key)
    screen = console if console is not None else Console()
    if options.once:
        screen.print(_drawn([table for look in looks for table in look()]))
        return 0
    ending = threading.Event()  # that nobody sets: Ctrl-C ends
    try:
        with Live(console=screen, auto_refresh=False, screen=screen.is_terminal) as live:
            while True:
                tables = [table for look in looks for table in look()]
                live.update(_drawn(tables), refresh=True)
                ending.wait(options.every)
    except KeyboardInterrupt:
        return 0


def _drawn(tables: Sequence[Table]) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    parts: list[RenderableType] = []
    for one in tables:
        if one.note:
            parts.append(Text(printable(one.note, 500), style="bold"))
        if not one.head:
            continue
        title = Text(printable(one.title), style="bold")
        grid = Grid(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for i, name in enumerate(one.head):
            # Text, not markup: names of users are in it.
            justify: Literal["left", "right"] = "left" if i == 0 else "right"
            grid.add_column(Text(name), justify=justify, no_wrap=name != "bottleneck")
        for row in one.rows:
            grid.add_row(*(Text(printable(cell)) for cell in row))
        parts.append(grid)
    return Group(*parts)


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("give seconds, more than 0")
    return value
