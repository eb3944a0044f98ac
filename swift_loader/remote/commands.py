"""``swift-loader serve``, ``keygen`` and ``status``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

import loguru

from swift_loader.remote.address import check_address
from swift_loader.remote.binding import check_bind
from swift_loader.remote.endpoint import Endpoint, Options
from swift_loader.remote.keys import KEY_VARIABLE, Keys, load_keys
from swift_loader.remote.status import ask_status
from swift_loader.telemetry.sinks.addresses import sinks_of

__all__ = ["keygen", "serve", "serve_until_told", "status"]

_FORMAT = "{time:YYYY-MM-DD HH:mm:ss} | {level: <7} | {message}"
_SECRET_NOTE = f"the file that `swift-loader keygen` made; default: ${KEY_VARIABLE}, if it is set"


def serve(argv: Sequence[str]) -> int:
    """Run an endpoint until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(
        "swift-loader serve",
        description="Make batches here for training processes elsewhere. Whoever may connect may "
        "run code here, by the dataset that it sends: so only holders of the key may.",
    )
    parser.add_argument(
        "--bind",
        default="tcp://127.0.0.1:0",
        help="tcp://address:port; port 0: any free one (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=_count,
        default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        help="worker processes, over all training (default: a core each, %(default)s)",
    )
    parser.add_argument("--key", help=_SECRET_NOTE)
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="bind beyond this machine without a key: whoever can reach the address can run any "
        "code here as you, and read what is sent",
    )
    parser.add_argument(
        "--metrics",
        action="append",
        nargs="?",
        const="log",
        default=[],
        metavar="PLACE",
        help="where figures go: prometheus://127.0.0.1:9500, otlp://HOST:PORT; without a place, or "
        "with `log`: a status line every 5 s. May be given several times",
    )
    options = parser.parse_args(argv)
    serve_until_told(
        options.bind,
        options.workers or 1,
        options.key,
        options.insecure,
        "log" in options.metrics,
        [place for place in options.metrics if place != "log"],
    )
    return 0


def serve_until_told(
    bind: str,
    workers: int,
    key: str | None,
    insecure: bool = False,
    status_line: bool = False,
    metrics: Sequence[str] = (),
) -> None:
    """Run an endpoint in this process until SIGTERM or SIGINT; logs to stderr.

    Prints ``host:port`` to stdout when it is ready. Raises `ConfigError`.
    """
    sinks = sinks_of("--metrics", list(metrics))
    keys = load_keys(key, "--key")
    warning = check_bind(bind, keys, insecure)
    logger = loguru.logger
    logger.remove()
    logger.add(sys.stderr, format=_FORMAT, level="INFO", diagnose=False)
    logger.enable("swift_loader")
    if warning:
        logger.warning(warning)
    if keys is not None:
        logger.info("uses key {}", keys.fingerprint)
    Endpoint(Options(bind, workers, keys, status_line, sinks), logger, _print_address).serve()


def keygen(argv: Sequence[str]) -> int:
    """Write a new key file."""
    parser = argparse.ArgumentParser(
        "swift-loader keygen",
        description="Make a key, once; copy the file to the endpoints and to the training hosts.",
    )
    parser.add_argument("file", help="a new file, readable by you alone")
    options = parser.parse_args(argv)
    keys = Keys.generate()
    keys.write(options.file)
    _show(f"{options.file}: key {keys.fingerprint}")
    return 0


def status(argv: Sequence[str]) -> int:
    """Print an endpoint's status as JSON."""
    parser = argparse.ArgumentParser("swift-loader status", description="What an endpoint does.")
    parser.add_argument("address", help="tcp://host:port")
    parser.add_argument("--key", help=_SECRET_NOTE)
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds to wait (5)")
    options = parser.parse_args(argv)
    check_address(options.address)
    facts = ask_status(options.address, load_keys(options.key, "--key"), options.timeout)
    _show(json.dumps(facts, indent=2))
    return 0


def _print_address(address: str) -> None:
    _show(address.partition("://")[2])


def _show(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("give 1 or more")
    return number
