"""The command `swift-loader`: finds a command's module, and gives it the rest of the line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from swift_loader.errors import LoaderError
from swift_loader.version import __version__

__all__ = ["main"]

# name: module, function, what it does. Imported only when asked for: each has needs of its own.
_COMMANDS = {
    "bench": ("swift_loader.bench.command", "bench", "how fast a data set is, and what would help"),
    "doctor": ("swift_loader.doctor.command", "doctor", "what there is here, for a bug report"),
    "report": ("swift_loader.report.command", "report_main", "what a benchmark_file tells"),
    "cache": ("swift_loader.cache.command", "cache", "what is kept in files: list, verify, rm"),
    "top": ("swift_loader.top.command", "top", "a live table of what runs now"),
    "trace": (
        "swift_loader.report.joined",
        "trace_main",
        "join its trace with torch.profiler's",
    ),
    "share": ("swift_loader.sharing.command", "share", "one loader for several trainings here"),
    "serve": ("swift_loader.remote.commands", "serve", "make batches here for training elsewhere"),
    "keygen": ("swift_loader.remote.commands", "keygen", "make the key that both sides hold"),
    "status": ("swift_loader.remote.commands", "status", "what an endpoint is doing, as JSON"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status. An error of ours is one line, not a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"swift-loader {__version__}")
        return 0
    name, *rest = arguments
    if name not in _COMMANDS:
        print(f"swift-loader: there is no command {name!r}\n{_usage()}", file=sys.stderr)
        return 2
    module, function, _ = _COMMANDS[name]
    try:
        status: int = getattr(importlib.import_module(module), function)(rest)
    except LoaderError as error:
        print(f"swift-loader {name}: {error}", file=sys.stderr)
        return 1
    return status


def _usage() -> str:
    lines = [f"  {name:<10} {about}" for name, (_, _, about) in _COMMANDS.items()]
    return "usage: swift-loader COMMAND ... | --version\n\n" + "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
