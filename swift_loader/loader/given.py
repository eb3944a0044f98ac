"""What a caller has given, as against what was left at its default."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from inspect import Signature
from typing import Any

from swift_loader.errors import ConfigError

__all__ = ["given_by_name", "refuse_unknown"]


def given_by_name(
    signature: Signature, owner: object, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a method of `owner` by name; defaults are not filled in.

    Raises `ConfigError` for a name that is none, `TypeError` for too many arguments.
    """
    refuse_unknown(kwargs, signature.parameters)
    arguments = signature.bind(owner, *args, **kwargs).arguments
    del arguments[next(iter(signature.parameters))]  # self
    return arguments


def refuse_unknown(names: Iterable[str], known: Iterable[str]) -> None:
    """Raises `ConfigError` for the first name that is no option's; it offers the nearest."""
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "; see help(SwiftLoader)"
            raise ConfigError(f"{name!r} is no option of a loader{hint}")
