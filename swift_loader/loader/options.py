"""Every option of a loader, validated once.

An error names the option, the value and the fix, and is a `ConfigError`, which is a `ValueError`
and a `TypeError` too.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from swift_loader.errors import ConfigError, refuse
from swift_loader.telemetry.log import LogConfig, log_config
from swift_loader.worker.cpus import available_cpus

__all__ = [
    "FIXED_SEED",
    "Config",
    "check_callable",
    "check_codec",
    "check_on_error",
    "check_platform",
    "check_samplers",
    "chosen_seed",
]

FIXED_SEED = 0  # where nothing says otherwise: never the clock, or two consumers would disagree
_MAX_SEED = 2**63 - 1
_A_DAY_S = 86400.0
_LEAST_QUEUE = 10


@dataclass(frozen=True)
class Config:
    """The validated options that are plain values; see `SwiftLoader` for what they mean."""

    batch_size: int
    nb_consumer: int
    worker_per_consumer: int
    shuffle: bool
    nearby_shuffle: int
    seed: int | None
    tail: Literal["balanced", "drop", "pad"]
    in_order: bool
    data_queue_size: int
    queue_grows: bool  # with the workers that an endpoint turns out to have
    message_queue_size: int
    max_buffer_size: int
    max_nb_batch_on_device: int
    multithread: bool
    threads_per_worker: int
    timeout_s: float | None
    on_timeout: Literal["raise", "restart"]
    max_worker_restarts: int
    max_bad_samples: int | None
    remote_timeout_s: float
    validate: bool
    benchmark: bool
    benchmark_file: str | None
    log: LogConfig | None
    auto_workers: bool
    worker_affinity: tuple[tuple[int, ...], ...]
    trace_file: str | None
    equal_steps: bool

    @classmethod
    def of(cls, options: dict[str, Any], nb_remote: int = 0) -> Config:
        """Validate; `nb_remote` links lead to workers elsewhere. Raises `ConfigError`."""
        batch_size = _integer(options, "batch_size", 1)
        auto = options["worker_per_consumer"] == "auto"
        workers = (
            available_cpus()
            if auto
            else _integer(options, "worker_per_consumer", 0 if nb_remote else 1)
        )
        grows = options["data_queue_size"] is None
        if grows:  # one to make and one to go on with, for each
            queue = max(_LEAST_QUEUE, 2 * (workers + nb_remote))
        else:
            queue = _integer(options, "data_queue_size", 1)
        nearby = options["nearby_shuffle"]
        buffer = options["max_buffer_size"]
        bad = options["max_bad_samples"]
        timeout = options["timeout"]
        return cls(
            batch_size=batch_size,
            nb_consumer=_integer(options, "nb_consumer", 1),
            worker_per_consumer=workers,
            shuffle=_flag(options, "shuffle"),
            nearby_shuffle=5 * batch_size
            if nearby is None
            else _integer(options, "nearby_shuffle", 0),
            seed=_seed(options),
            tail=_choice(options, "tail", "balanced", "drop", "pad"),
            in_order=_flag(options, "in_order"),
            data_queue_size=queue,
            queue_grows=grows,
            message_queue_size=_integer(options, "message_queue_size", 1),
            max_buffer_size=max(2, queue // (workers + nb_remote))
            if buffer is None
            else _integer(options, "max_buffer_size", 1),
            max_nb_batch_on_device=_integer(options, "max_nb_batch_on_device", 1),
            multithread=_flag(options, "multithread"),
            threads_per_worker=_integer(options, "threads_per_worker", 1),
            timeout_s=None if timeout is None else _seconds(options, "timeout"),
            on_timeout=_choice(options, "on_timeout", "raise", "restart"),
            max_worker_restarts=_integer(options, "max_worker_restarts", 0),
            max_bad_samples=None if bad is None else _integer(options, "max_bad_samples", 0),
            remote_timeout_s=_seconds(options, "remote_timeout") or _A_DAY_S,
            validate=_flag(options, "validate"),
            benchmark=_flag(options, "benchmark"),
            benchmark_file=_path(options, "benchmark_file"),
            log=log_config(options["logger"]),
            auto_workers=auto,
            worker_affinity=_affinity(options),
            trace_file=_path(options, "trace_file"),
            equal_steps=_flag(options, "equal_steps"),
        )


def check_platform() -> None:
    """Raises `ConfigError` where there are no Unix sockets to pass descriptors over."""
    if sys.platform == "win32":
        raise ConfigError(
            "swift_loader runs on Linux (and macOS): it passes shared memory between processes "
            "over Unix sockets. On Windows, use it inside WSL 2"
        )


def check_callable(option: str, value: object, *, optional: bool = True) -> None:
    """Raises `ConfigError` unless `value` can be called."""
    if not callable(value) and not (optional and value is None):
        refuse(option, value, "give a callable" + (", or None" if optional else ""))


def check_codec(encoder: object, decoder: object) -> None:
    """Both or neither: one alone can't be the other's inverse. Raises `ConfigError`."""
    check_callable("batch_encoder", encoder)
    check_callable("batch_decoder", decoder)
    if (encoder is None) != (decoder is None):
        given, missing = ("batch_encoder", "batch_decoder")
        if encoder is None:
            given, missing = missing, given
        raise ConfigError(
            f"{given} is given and {missing} is not: give both (a batch to bytes and back), or "
            "neither for the built-in codec"
        )


def check_on_error(value: object) -> None:
    """Raises `ConfigError` unless `value` is a policy for bad samples."""
    if value not in ("raise", "skip", "replace") and not callable(value):
        refuse(
            "on_error",
            value,
            "give 'raise', 'skip', 'replace', or a callable (exception, index) -> sample",
        )


def check_samplers(
    sampler: object, batch_sampler: object, *, shuffle: object, batch_size: object
) -> None:
    """An order of the user's leaves nothing to shuffle. Raises `ConfigError`."""
    for option, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is None:
            continue
        if not isinstance(value, Iterable):
            refuse(option, value, "give an iterable, such as a torch.utils.data.Sampler")
        if shuffle:
            refuse("shuffle", shuffle, f"{option} says the order; leave shuffle out")
    if batch_sampler is not None and (sampler is not None or batch_size != 1):
        refuse("batch_sampler", batch_sampler, "it says sampler and batch_size; leave them out")


def chosen_seed(option: int | None) -> int | None:
    """The seed that the user chose: the option, else `PL_GLOBAL_SEED`, else None."""
    if option is not None:
        return option
    text = os.environ.get("PL_GLOBAL_SEED", "")
    if not text:
        return None
    try:
        seed = int(text)
    except ValueError:
        seed = -1
    if not 0 <= seed <= _MAX_SEED:
        refuse("PL_GLOBAL_SEED", text, f"the environment variable must be a whole number in "
               f"[0, {_MAX_SEED}]; lightning.seed_everything sets it")  # fmt: skip
    return seed


def _seed(options: dict[str, Any]) -> int | None:
    given = {
        name: options[name]
        for name in ("seed", "seed_number", "seed_numer")
        if options[name] is not None
    }
    if len(set(map(repr, given.values()))) > 1:
        refuse("seed", given, "these are names of one option; give it once")
    for name in given:
        seed = _integer(options, name, 0)
        if seed > _MAX_SEED:
            refuse(name, seed, f"give a whole number in [0, {_MAX_SEED}]")
        return seed
    return None


def _integer(options: dict[str, Any], name: str, low: int) -> int:
    value = options[name]
    try:
        if isinstance(value, bool):
            raise TypeError
        number = value.__index__()
    except (AttributeError, TypeError):
        refuse(name, value, f"give a whole number, {low} or more")
    if number < low:
        refuse(name, value, f"give a whole number, {low} or more")
    return int(number)


def _flag(options: dict[str, Any], name: str) -> bool:
    value = options[name]
    if not isinstance(value, bool):
        refuse(name, value, "give True or False")
    return value


def _choice(options: dict[str, Any], name: str, *choices: str) -> Any:
    value = options[name]
    if value not in choices:
        refuse(name, value, "give one of " + ", ".join(map(repr, choices)))
    return value


def _seconds(options: dict[str, Any], name: str) -> float | None:
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        refuse(name, value, "give seconds above 0, or None to wait for ever")
    return None if math.isinf(value) else float(value)


def _affinity(options: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    value = options["worker_affinity"]
    if value is None:
        return ()
    here = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    try:
        listed = list(value)
        if all(isinstance(cpu, int) for cpu in listed):
            listed = [listed]
        sets = tuple(tuple(int(cpu) for cpu in cpus) for cpus in listed)
    except (TypeError, ValueError):
        sets = ()
    if not sets or not all(cpus and set(cpus) <= set(here) for cpus in sets):
        refuse("worker_affinity", value, f"give CPU numbers out of {here}, or lists of these")
    return sets


def _path(options: dict[str, Any], name: str) -> str | None:
    value = options[name]
    if value is None:
        return None
    if not isinstance(value, (str, Path)):
        refuse(name, value, "give the path of a file")
    return str(value)
