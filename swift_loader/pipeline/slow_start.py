"""A start that takes long, as a data set's constructor may, or hang: it is said where workers are.

No option bounds a start, as nobody knows how long a constructor should take.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

__all__ = ["WARNS_AFTER_S", "warn_of_slow_start"]

WARNS_AFTER_S = 60.0


def warn_of_slow_start(stories: Iterable[str]) -> None:
    """The loader goes on waiting. `stories`: of each worker, where it is."""
    told = "\n\n".join(stories)
    warnings.warn(
        f"for {WARNS_AFTER_S:g} s no worker has been ready: the data set's constructor (or "
        f"worker_init_fn) takes long, or hangs. The loader goes on waiting.\n{told}",
        RuntimeWarning,
        stacklevel=2,
    )
