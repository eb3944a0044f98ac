"""What a worker says of a setting of the training process that it does without."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn_left_out"]


def warn_left_out(what: str, why: object) -> None:
    """Warn. Never raises: where warnings are errors, it is a line on stderr."""
    text = f"a worker does without this setting of the training process: {what} ({why})"
    try:
        warnings.warn(text, stacklevel=2)
    except Warning:
        if sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
