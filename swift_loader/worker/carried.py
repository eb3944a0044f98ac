"""Parts of settings that may be of the script's own classes: pickled, or why they can't be.

What the worker can't import travels by value, as with data sets. A part that can't travel does not
keep the others from it.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NamedTuple

from swift_loader.batch.byvalue import ByValue

__all__ = ["Carried", "carried", "name_of", "of_script"]

_MOST_BYTES = 1 << 20  # a formatter may speak of a global that holds the whole data set


class Carried(NamedTuple):
    """A pickle, or None and why there is none."""

    pickle: bytes | None
    why: str = ""

    def value(self) -> Any:
        """What was carried. Raises what unpickling it raises, `LookupError` if it wasn't."""
        if self.pickle is None:
            raise LookupError(self.why)
        return pickle.loads(self.pickle)


def carried(value: Any) -> Carried:
    """`value`, if it can travel."""
    file = io.BytesIO()
    pickler: Any = _Pickler(file, 5)
    try:
        pickler.dump(value)
    except Exception as error:  # noqa: BLE001 - locks and sockets, and what the user's raises
        return Carried(None, f"{type(error).__name__}: {error}")
    if file.tell() > _MOST_BYTES:
        return Carried(None, f"it takes {file.tell():,} bytes with all that it uses")
    return Carried(file.getvalue())


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self._by_value = ByValue(keeps=True)

    def reducer_override(self, obj: Any) -> Any:
        return self._by_value.reduce(obj)


def of_script(thing: Any) -> bool:
    """Whether it is a class or function of the script, or an object of one."""
    return getattr(thing, "__module__", None) in ("__main__", "__mp_main__")


def name_of(kind: Any) -> str:
    """The full name of a class, or of several; the same where workers import the script."""
    if isinstance(kind, tuple):
        return ", ".join(map(name_of, kind))
    module = "__main__" if of_script(kind) else kind.__module__
    return f"{module}.{kind.__qualname__}"
