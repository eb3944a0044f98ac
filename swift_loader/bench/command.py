"""``swift-loader bench module:Dataset --kwargs '{...}' --batch-size 64``."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from swift_loader.bench.advice import advise, as_tried, helps, is_busy, waits
from swift_loader.bench.text import advice_text, heading, row
from swift_loader.bench.trials import (
    Subject,
    Trial,
    busy_cpus,
    dataset_alone,
    with_torch,
    with_workers,
    without_workers,
)
from swift_loader.errors import ConfigError
from swift_loader.telemetry.units import format_seconds
from swift_loader.worker.cpus import cpu_limits

__all__ = ["Progress", "bench", "while_more_help"]

_THREADS = (8, 16, 32, 64)  # tried where the data set waits, as long as more help
_MOST_FOR_A_CPU = 8  # workers that are tried where the data set waits, as long as more help
_USUAL_QUEUE = 10


def bench(arguments: Sequence[str]) -> int:
    """Measure, showing each result as it comes; returns 0.

    Raises `ConfigError` for a data set that can't be found, and whatever the data set raises.
    """
    options = _parser().parse_args(arguments)
    kwargs = _kwargs(options.kwargs)
    limits = cpu_limits()
    dataset = _found(options.dataset)
    _check_takes(dataset, kwargs)
    subject = Subject(dataset, kwargs, options.batch_size, options.shuffle, options.seconds)
    numbers = sorted(set(options.workers or _numbers(limits.cpus)))
    progress = Progress(options.json, 2 + (2 - options.no_torch) * len(numbers))
    progress.say(f"{options.dataset}, batch_size {subject.batch_size}")
    progress.say(f"CPUs that may be used: {limits.cpus} ({limits})")

    others = busy_cpus()
    busy = is_busy(others, limits.cpus)
    if busy:
        progress.say(
            f"Other processes use {others:.1f} CPUs: what follows is less than this machine can "
            "do, and differs from run to run. Measure again when it is quiet"
        )
    progress.say(heading())
    alone = progress.run("dataset alone", partial(dataset_alone, subject))
    ours = [progress.run("no workers", partial(without_workers, subject))]
    for number in numbers:
        ours.append(progress.run(f"workers: {number}", partial(with_workers, subject, number)))
    if waits(alone):
        most = numbers[-1] if options.workers else _MOST_FOR_A_CPU * limits.cpus
        ours += while_more_help(progress, subject, ours[-1], most)
    torch: list[Trial] = []
    for number in [] if options.no_torch else numbers:
        torch.append(
            progress.run(f"torch, workers: {number}", partial(with_torch, subject, number))
        )

    step_s = None if options.step_ms is None else options.step_ms / 1000
    advice = advise(alone, ours[1:], torch, limits.cpus, step_s)
    if advice.data_queue_size != _USUAL_QUEUE:  # nothing is recommended that was not tried
        progress.nb_trials += 1
        chosen = advice.worker_per_consumer, advice.threads_per_worker, advice.data_queue_size
        tried = progress.run("as recommended", partial(with_workers, subject, *chosen))
        ours.append(tried)
        advice = as_tried(advice, tried)
    if options.json:
        found = {
            "dataset": options.dataset,
            "batch_size": subject.batch_size,
            "cpus": {**asdict(limits), "usable": limits.cpus, "used_by_others": others},
            "trials": [_plain(trial) for trial in (alone, *ours, *torch)],
            "recommended": asdict(advice),
        }
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    else:
        built = format_seconds(alone.built_s or 0.0)
        sys.stdout.write(advice_text(alone, ours, advice))
        sys.stdout.write(f"\nThe data set takes {built} to build.\n")
    return 0


def while_more_help(
    progress: Progress, subject: Subject, best: Trial, most_workers: int
) -> list[Trial]:
    """More threads, then more workers: what waits needs no CPU for each of them."""
    tried: list[Trial] = []

    def better(name: str, workers: int, threads: int) -> bool:
        nonlocal best
        progress.nb_trials += 1
        trial = progress.run(name, partial(with_workers, subject, workers, threads))
        tried.append(trial)
        if not helps(trial, best):
            return False
        best = trial
        return True

    for threads in _THREADS:
        if not better(f"workers with {threads} threads", best.workers, threads):
            break
    while 2 * best.workers <= most_workers:
        if not better(f"workers: {2 * best.workers}", 2 * best.workers, best.threads):
            break
    return tried


class Progress:
    """Results go to stdout as they come (with ``--json``: nothing), what is running to stderr."""

    def __init__(self, silent: bool, nb_trials: int) -> None:
        self._silent = silent
        self.nb_trials = nb_trials
        self._nb_done = 0
        self._live = sys.stderr.isatty()

    def say(self, line: str) -> None:
        if not self._silent:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def run(self, name: str, measure: Callable[[], Trial]) -> Trial:
        self._nb_done += 1
        doing = f"[{self._nb_done}/{self.nb_trials}] {name} ..."
        sys.stderr.write(doing if self._live else doing + "\n")
        sys.stderr.flush()
        trial = measure()
        if self._live:
            sys.stderr.write("\r" + " " * len(doing) + "\r")
            sys.stderr.flush()
        self.say(row(trial))
        return trial


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="swift-loader bench",
        description="How fast a data set is, alone and with workers, and what to do about it.",
    )
    parser.add_argument(
        "dataset",
        metavar="module:Dataset",
        help="a class or function, here or installed",
    )
    parser.add_argument("--kwargs", default="{}", metavar="JSON", help="its keyword arguments")
    parser.add_argument("--batch-size", type=_positive_int, default=64)
    parser.add_argument("--shuffle", action="store_true", help="in random order")
    parser.add_argument(
        "--workers",
        type=_positive_int,
        nargs="+",
        metavar="N",
        help="how many to try (default: 1, 2, 4, ... up to the CPUs)",
    )
    parser.add_argument(
        "--seconds", type=_positive, default=3.0, help="for each measurement (default: 3)"
    )
    parser.add_argument(
        "--step-ms", type=_positive, metavar="MS", help="what a step of your training takes"
    )
    parser.add_argument("--no-torch", action="store_true", help="leave torch's DataLoader out")
    parser.add_argument("--json", action="store_true", help="the result as JSON, nothing else")
    return parser


def _found(spec: str) -> Callable[..., Any]:
    sys.path.insert(0, os.getcwd())
    try:
        found = pkgutil.resolve_name(spec)
    except (ValueError, ImportError, AttributeError) as error:
        raise ConfigError(
            f"{spec!r} can't be found: {error}. Give module:Dataset, with the module in the "
            "current directory or installed"
        ) from error
    if not callable(found):
        raise ConfigError(f"{spec!r} is a {type(found).__name__}; give what builds the data set")
    return found  # type: ignore[no-any-return]


def _check_takes(dataset: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(dataset)
    except (TypeError, ValueError):  # it does not say what it takes
        return
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise ConfigError(
            f"--kwargs {json.dumps(kwargs)}: {error}; the data set takes {signature}"
        ) from None


def _kwargs(text: str) -> dict[str, Any]:
    try:
        kwargs = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--kwargs {text!r} is no JSON: {error}") from error
    if not isinstance(kwargs, dict):
        raise ConfigError(f'--kwargs {text!r}: give an object, such as \'{{"folder": "x"}}\'')
    return kwargs


def _numbers(cpus: int) -> list[int]:
    numbers = [1]
    while numbers[-1] * 2 < cpus:
        numbers.append(numbers[-1] * 2)
    return [*numbers, cpus]


def _plain(trial: Trial) -> dict[str, Any]:
    rates = {"batches_per_s": trial.batches_per_s, "samples_per_s": trial.samples_per_s}
    return {**asdict(trial), **rates}


def _positive(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError("give a number above 0")
    return number


def _positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("give 1 or more")
    return number
