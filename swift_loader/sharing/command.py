"""``swift-loader share module:make_loader``: a producer from the command line, with a table."""

from __future__ import annotations

import argparse
import importlib
import inspect
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

import loguru
from torch.utils.data import Dataset

from swift_loader.errors import ConfigError
from swift_loader.sharing.producer import ConsumerView, TensorProducer
from swift_loader.telemetry.printable import printable

__all__ = ["share", "table"]

_HEADER = ("consumer", "state", "epoch", "batch", "behind", "batches/s")


def share(arguments: Sequence[str]) -> int:
    """Serve the loader until its epochs are over, or until Ctrl-C."""
    options = _parser().parse_args(arguments)
    loader = load(options.loader)()
    if isinstance(loader, Dataset):
        raise ConfigError(
            f"{options.loader!r} gives a data set ({type(loader).__name__}), which has samples and "
            "no batches: give a function that returns a loader of it"
        )
    screen = Screen(sys.stdout, options.every)
    if not screen.live:
        loguru.logger.enable("swift_loader.sharing")
    producer = TensorProducer(
        loader,
        options.port,
        rubber_band_pct=options.rubber_band,
        consumer_max_buffer_size=options.buffer,
        device=options.device,
        lag_timeout=options.lag_timeout,
        wait_for=options.wait_for,
        metrics=options.metrics,
    )
    with producer:
        try:
            for epoch in itertools.count() if options.epochs is None else range(options.epochs):
                _one_epoch(producer, screen, epoch)
            producer.join()
        except KeyboardInterrupt:
            return 130
    return 0


def _one_epoch(producer: TensorProducer, screen: Screen, epoch: int) -> None:
    steps = iter(producer)
    while next(steps, None) is not None:
        while True:
            screen.show(producer, epoch)
            if producer.wait(screen.every_s):
                break


def load(spec: str) -> Callable[[], Iterable[Any]]:
    """The callable that ``module:name`` names; modules of the current directory count.

    Raises `ConfigError` where there is none.
    """
    module, _, name = spec.partition(":")
    if not module or not name:
        raise ConfigError(f"{spec!r} must be module:callable, such as my_data:make_loader")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(f"{spec!r} can't be found: {error}") from error
    if not callable(found):
        raise ConfigError(f"{spec!r} is a {type(found).__name__}: give a callable of no arguments")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise ConfigError(
            f"{spec!r} is to be called without arguments ({error}): give a function that returns "
            "the loader"
        ) from error
    except ValueError:  # it does not say what it takes
        pass
    callable_found: Callable[[], Iterable[Any]] = found
    return callable_found


class Screen:
    """Shows who is there every `every_s` seconds: a table in place on a terminal, else a line."""

    def __init__(self, out: TextIO, every_s: float | None) -> None:
        self.live = out.isatty()
        self.every_s = every_s if every_s is not None else (1.0 if self.live else 60.0)
        self._out = out
        self._next_s = 0.0
        self._shown_s = time.monotonic()
        self._taken: dict[int, int] = {}  # by process
        self._nb_lines = 0

    def show(self, producer: TensorProducer, epoch: int) -> None:
        """Write the table, if it is time to."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        consumers = producer.consumers()
        seconds = max(now_s - self._shown_s, 1e-9)
        rates = {c.pid: (c.nb_taken - self._taken.get(c.pid, 0)) / seconds for c in consumers}
        lines = [f"epoch {epoch} at {producer.address}"]
        if self.live:
            lines += table(consumers, rates)
        else:
            lines[0] += ": " + in_one_line(consumers, rates)
        up = f"\x1b[{self._nb_lines}F\x1b[J" if self.live and self._nb_lines else ""
        self._out.write(up + "\n".join(lines) + "\n")
        self._out.flush()
        self._nb_lines = len(lines)
        self._taken = {c.pid: c.nb_taken for c in consumers}
        self._shown_s = now_s
        self._next_s = now_s + self.every_s


def table(consumers: Sequence[ConsumerView], rates: dict[int, float]) -> list[str]:
    """The lines of the table; `rates` in batches a second, by process id. Pure."""
    if not consumers:
        return ["no consumer is connected"]
    rows = [_HEADER] + [
        (
            printable(c.name),
            c.state,
            str(c.epoch),
            str(c.batch),
            str(c.behind),
            f"{rates.get(c.pid, 0.0):.1f}",
        )
        for c in consumers
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    return [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def in_one_line(consumers: Sequence[ConsumerView], rates: dict[int, float]) -> str:
    """The same for a file: ``train.py (process 12) active, epoch 3 batch 41, 10.0/s``. Pure."""
    told = [
        f"{printable(c.name)} {c.state}, epoch {c.epoch} batch {c.batch}, "
        f"{rates.get(c.pid, 0.0):.1f}/s"
        for c in consumers
    ]
    return "; ".join(told) or "no consumer is connected"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="swift-loader share",
        description="Share a loader's batches with the trainings on this machine.",
    )
    parser.add_argument("loader", metavar="module:callable", help="called once; gives the loader")
    parser.add_argument("--port", default="5555", help="number or name (default 5555)")
    parser.add_argument("--epochs", type=int, help="then end (default: go on until Ctrl-C)")
    parser.add_argument(
        "--rubber-band",
        type=float,
        default=0.02,
        help="share of an epoch that is kept for who comes late (default 0.02)",
    )
    parser.add_argument("--buffer", type=int, default=10, help="batches sent ahead (default 10)")
    parser.add_argument(
        "--lag-timeout",
        type=float,
        default=300.0,
        help="seconds until a consumer that holds the others up is dropped (default 300)",
    )
    parser.add_argument(
        "--wait-for",
        type=int,
        default=1,
        help="consumers that the first epoch waits for",
    )
    parser.add_argument(
        "--metrics",
        action="append",
        metavar="PLACE",
        help="where figures go, such as prometheus://127.0.0.1:9400",
    )
    parser.add_argument("--device", help="share batches on this CUDA device (default: the CPU)")
    parser.add_argument(
        "--every",
        type=float,
        help="seconds between tables (default 1), or lines if not a terminal (60)",
    )
    return parser
