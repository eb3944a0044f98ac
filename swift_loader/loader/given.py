"""What a caller has given, as against what was left at its default."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from inspect import Signature
from typing import TYPE_CHECKING, Any

from swift_loader.errors import ConfigError

if TYPE_CHECKING:
    from swift_loader.loader.loader import SwiftLoader

__all__ = ["given_by_name", "given_to", "refuse_unknown"]

# Words of other libraries, and what belongs elsewhere.
_HINTS = {
    "bs": "give batch_size",
    "device": "batches are moved there by loader.start(device=...)",
    "devices": "give nb_consumer, and the device to loader.start(device=...)",
    "epochs": "each `for batch in loader` is an epoch",
    "num_epochs": "each `for batch in loader` is an epoch",
    "num_replicas": "give nb_consumer, the number of ranks",
    "rank": "give nb_consumer, and the rank to loader.start(rank)",
    "snapshot_every_n_steps": "leave it out: state_dict() is exact after every batch",
    "to_device": "it goes to loader.start(to_device=...)",
    "world_size": "give nb_consumer, the number of ranks",
}


def given_to(loader: SwiftLoader[Any]) -> Mapping[str, Any]:
    """What the script has given to a loader, by name; without what is large."""
    return loader._given


def given_by_name(
    signature: Signature, owner: object, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a method of `owner` by name; defaults are not filled in.

    Raises `ConfigError` for a name that is none, for too many arguments, and for one that is
    missing or given twice.
    """
    refuse_unknown(kwargs, signature.parameters)
    try:
        arguments = signature.bind(owner, *args, **kwargs).arguments
    except TypeError as error:
        places = [
            one.name
            for one in signature.parameters.values()
            if one.kind is one.POSITIONAL_OR_KEYWORD
        ]
        raise ConfigError(
            f"{error}: only {', '.join(places)} go by their place, all other options by name"
        ) from None
    del arguments[next(iter(signature.parameters))]  # self
    return arguments


def refuse_unknown(names: Iterable[str], known: Iterable[str]) -> None:
    """Raises `ConfigError` for the first name that is no option's; it offers the nearest."""
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else "see help(SwiftLoader)"
            raise ConfigError(f"{name!r} is no option of a loader; {_HINTS.get(name, hint)}")
