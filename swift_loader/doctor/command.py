"""``swift-loader doctor [--endpoint tcp://host:port] [--key FILE] [--json]``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from swift_loader.doctor import machine, trials
from swift_loader.doctor.finding import Finding, text_of

__all__ = ["doctor"]


def doctor(arguments: Sequence[str]) -> int:
    """Print what there is; 0 where all works, 1 where something does not."""
    options = _parser().parse_args(arguments)
    found: list[Finding] = [
        *machine.versions(),
        *machine.limits(),
        *machine.memory(),
        *machine.environment(),
    ]
    if not any(one.broken for one in found):
        found += [*trials.workers(), *trials.gpus()]
    found += trials.endpoints(options.endpoint, options.key, options.timeout)
    if options.json:
        sys.stdout.write(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    else:
        sys.stdout.write(text_of(found))
    return int(any(one.broken for one in found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="swift-loader doctor",
        description="What there is for a loader on this machine: paste it into a bug report.",
    )
    parser.add_argument(
        "--endpoint", nargs="+", default=[], metavar="tcp://host:port", help="does it answer?"
    )
    parser.add_argument("--key", metavar="FILE", help="the endpoints' key file")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds to wait for each (5)")
    parser.add_argument("--json", action="store_true", help="the same as a JSON array")
    return parser
