"""Other names of the options: those of torch's `DataLoader`, and of the original SwiftLoader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swift_loader.errors import ConfigError, refuse
from swift_loader.loader.checks import Check, anything, flag, whole
from swift_loader.worker.script import how_to_import

__all__ = ["ALIASES", "Alias", "by_own_names", "start_method_like"]


@dataclass(frozen=True)
class Alias:
    """Another name of the option `own`. None is "not given"; `value` translates the rest."""

    name: str
    type: str
    own: str
    text: str
    value: Check = anything


def _tail(name: str, value: Any) -> str:
    return "drop" if flag(name, value) else "balanced"


def start_method_like(name: str, value: Any) -> str:
    """Our method for one of `multiprocessing`'s, given by its name or as a context."""
    method = value if isinstance(value, str) else getattr(value, "get_start_method", str)()
    if method not in ("fork", "forkserver", "spawn"):
        refuse(name, value, "give 'fork', 'spawn', 'forkserver', or a context of these")
    if method == "fork":
        return "fork"
    # As `multiprocessing`, which imports nothing where there is no file (a notebook, `python -m`).
    return "main" if how_to_import() is not None else "fresh"


ALIASES = {
    alias.name: alias
    for alias in (
        Alias("dataset", "Any", "dataset_class", ""),
        Alias("num_workers", "int | None", "worker_per_consumer", "torch's default is 0", whole(0)),
        Alias(
            "drop_last", "bool | None", "tail", '`True` is `"drop"`, `False` is `"balanced"`', _tail
        ),
        Alias(
            "prefetch_factor", "int | None", "data_queue_size", "batches for each worker", whole(1)
        ),
        Alias(
            "multiprocessing_context",
            "Any",
            "start_method",
            '"fork" is `"fork"`; "spawn" and "forkserver" are `"main"`, or `"fresh"` if the script '
            "has no file",
            start_method_like,
        ),
        Alias("seed_number", "int | None", "seed", ""),
        Alias("seed_numer", "int | None", "seed", ""),
    )
}


def by_own_names(given: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """What was given: by the options' own names, the name that was used and the value.

    Raises `ConfigError` for an option that is given by two of its names.
    """
    named: dict[str, tuple[str, Any]] = {}
    for name, value in given.items():
        own = name
        if name in ALIASES:
            if value is None:
                continue
            alias = ALIASES[name]
            own, value = alias.own, alias.value(name, value)
        if own in named and None not in (value, named[own][1]):
            raise ConfigError(
                f"{named[own][0]} and {name} are two names of one option: give one of them"
            )
        if own not in named or value is not None:
            named[own] = name, value
    return named
