"""What a caller has given, as against what was left at its default."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar, cast

from swift_loader.errors import ConfigError

__all__ = ["given_by_name", "refuse_unknown"]

F = TypeVar("F", bound=Callable[..., None])


def given_by_name(init: F) -> F:
    """For an `__init__` that is a signature alone: `_set_up` gets what was given, by name.

    The signature is there for people, type checkers and editors, which read source. `_set_up` must
    know whether an argument was given, and takes defaults from the definitions of the options.
    """
    signature = inspect.signature(init)

    @wraps(init)
    def by_name(self: Any, *args: Any, **kwargs: Any) -> None:
        refuse_unknown(kwargs, signature.parameters)
        arguments = signature.bind(self, *args, **kwargs).arguments
        del arguments[next(iter(signature.parameters))]  # self
        self._set_up(arguments)

    return cast(F, by_name)


def refuse_unknown(names: Iterable[str], known: Iterable[str]) -> None:
    """Raises `ConfigError` for the first name that is no option's; it offers the nearest."""
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "; see help(SwiftLoader)"
            raise ConfigError(f"{name!r} is no option of a loader{hint}")
