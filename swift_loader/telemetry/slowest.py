"""The slowest samples of a run, by their index: ten of them, whatever its length."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Slowest"]

_KEPT = 10
_MOST = 64  # under way, before the quickest of them are dropped


class Slowest:
    """A sample that comes in every epoch stands once, with its longest time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._longest_s: dict[Any, float] = {}
        self._least_s = 0.0  # what is quicker is not among them

    def add(self, index: Any, seconds: float) -> None:
        """Sample `index` (plain data) took so long. Cheap for one that is not among the slowest."""
        if seconds <= self._least_s:
            return
        with self._lock:
            if seconds > self._longest_s.get(index, 0.0):
                self._longest_s[index] = seconds
            if len(self._longest_s) > _MOST:
                self._longest_s = dict(self._sorted()[:_KEPT])
                self._least_s = min(self._longest_s.values())

    def table(self) -> tuple[tuple[Any, float], ...]:
        """``(index, seconds)``, the slowest first."""
        with self._lock:
            return tuple(self._sorted()[:_KEPT])

    def _sorted(self) -> list[tuple[Any, float]]:
        return sorted(self._longest_s.items(), key=lambda item: -item[1])
