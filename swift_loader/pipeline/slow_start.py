"""A warning that says where the workers are while a start takes long, or hangs.

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
        "workers are not ready yet: the data set's constructor (or worker_init_fn) takes long, or "
        "hangs, or a worker elsewhere does not answer. The loader goes on waiting, and says so "
        f"every {WARNS_AFTER_S:g} s.\n{told}",
        RuntimeWarning,
        stacklevel=2,
    )
