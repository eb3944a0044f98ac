"""The annotations of a function or class that travels by value."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["annotations_of"]


def annotations_of(obj: Any) -> Any:
    """As they are; as text where they name what is not there, such as for type checkers only.

    Python 3.14 evaluates them when they are asked for, so only then is an error seen.
    """
    try:
        return obj.__annotations__
    except Exception:  # noqa: BLE001 - whatever the expressions raise
        library = importlib.import_module("annotationlib")
        return library.get_annotations(obj, format=library.Format.STRING)
