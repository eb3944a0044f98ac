"""What a script changes that workers do not see: numbers and texts, as far as that costs nothing.

Workers have the user's things as they are at the start; as they were when the loader was built,
where they are too large to be looked at again. What a script sets later, workers with torch's
loader would see in the next epoch, unless they are persistent.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from swift_loader.batch.wrapped import with_wrapped

__all__ = ["BUILT", "STARTED", "Settings", "settings_of", "warn_if_changed"]

_PLAIN = (bool, int, float, str, type(None))
_PACKAGE = __name__.partition(".")[0] + "."

BUILT, STARTED = "the loader was built", "the workers were started"
_FIX = {
    BUILT: "change it before you build the loader, or tell the workers with "
    "loader.call_dataset(method, ...)",
    STARTED: "tell them with loader.call_dataset(method, ...), or give the data set, transform or "
    "collate_fn a set_epoch(epoch), which they call",
}

#: The public attributes with a number or a text, by the id of what has them.
Settings = Mapping[int, Mapping[str, Any]]


def settings_of(dataset: Any, *functions: Any) -> Settings:
    """Those of a data set, of the data sets that torch's wrappers hold, and of `functions`."""
    return {id(one): _settings(one) for one in _things(dataset, functions)}


def warn_if_changed(known: Settings, dataset: Any, *functions: Any, since: str) -> Settings:
    """Warn of a setting that is another one than in `known`; or in its class, where it is new.

    Returns what is known from now on. `since`: when it was as workers have it. An epoch is told by
    the loader, and what is set together with one may be what ``set_epoch`` does, also in workers.
    """
    now = settings_of(dataset, *functions)
    for one in _things(dataset, functions):
        changed = dict(_changed(one, known.get(id(one)), now[id(one)]))
        if not changed or (since == STARTED and _is_by_epoch(one, changed, now[id(one)])):
            continue
        texts = [text for name, text in changed.items() if "epoch" not in name]
        if texts:
            name = getattr(one, "__qualname__", None) or type(one).__qualname__
            warnings.warn(
                f"the {name} was changed after {since} ({', '.join(texts)}), and the workers have "
                f"it as it was then: {_FIX[since]}",
                RuntimeWarning,
                stacklevel=_outside(),
            )
    return now


def _things(dataset: Any, functions: tuple[Any, ...]) -> Iterator[Any]:
    yield from with_wrapped(dataset)
    yield from functions


def _settings(one: Any) -> dict[str, Any]:
    attributes: Any = getattr(one, "__dict__", {})
    return {
        name: value
        for name, value in attributes.items()
        if type(value) in _PLAIN and not name.startswith("_")
    }


def _changed(
    one: Any, known: Mapping[str, Any] | None, now: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    if known is None:
        return
    was = {}
    for kind in reversed(type(one).__mro__):
        was.update({name: it for name, it in vars(kind).items() if type(it) in _PLAIN})
    was.update(known)
    for name, value in now.items():
        if name in was and was[name] != value and value == value:
            yield name, f"{name} was {was[name]!r:.60}, is now {value!r:.60}"


def _is_by_epoch(one: Any, changed: Mapping[str, str], now: Mapping[str, Any]) -> bool:
    """Whether its ``set_epoch`` may have done it: an epoch has changed too, or it keeps none."""
    if any("epoch" in name for name in changed):
        return True
    return hasattr(one, "set_epoch") and not any("epoch" in name for name in now)


def _outside() -> int:
    """The stack level of the script's line, for a warning of who calls this."""
    level = 2
    while True:
        try:
            module = str(sys._getframe(level).f_globals.get("__name__"))
        except ValueError:
            return level
        if not module.startswith(_PACKAGE):
            return level
        level += 1
