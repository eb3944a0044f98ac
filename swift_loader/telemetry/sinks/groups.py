"""The name that a loader's figures stand under, where several loaders write into one place.

A training loader and the one for validation may write into one run. The first to open a place has
the name ``swift_loader`` there, the second one ``swift_loader_2``, and so on, each until it closes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable

__all__ = ["Group"]

_lock = threading.Lock()
_taken: set[tuple[Hashable, int]] = set()
os.register_at_fork(after_in_child=_taken.clear)  # a fork has none of the threads that write


class Group:
    """A loader's name in `place`, until `close`."""

    def __init__(self, place: Hashable) -> None:
        with _lock:
            number = 1
            while (place, number) in _taken:
                number += 1
            self._own = (place, number)
            _taken.add(self._own)
        self.number = number
        self.name = "swift_loader" if number == 1 else f"swift_loader_{number}"

    def close(self) -> None:
        """Let go of the name. Twice is fine."""
        with _lock:
            _taken.discard(self._own)
