"""What came of each source of a mixture, and how long the training loop waited for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from swift_loader.order.part import Number
from swift_loader.telemetry.stats import SourceStats

__all__ = ["BySource"]


_AT_ONCE = 64


class BySource:
    """Sums of one consumer. `tokens`: in each sample of a source, where that is known.

    The training thread calls `delivered`, any thread `snapshot`. `count` is given batches that
    follow each other, and calls `add`.
    """

    def __init__(self, names: Sequence[str], tokens: Sequence[int | None]) -> None:
        self._names = tuple(names)
        self._tokens = tuple(tokens)
        self._samples = [0] * len(self._names)
        self._wait_s = [0.0] * len(self._names)
        self._begun = False
        self.count: Callable[[list[tuple[Number, float]]], None] | None = None
        self._waiting: deque[tuple[Number, float]] = deque()  # to be counted
        self._counting = threading.Lock()

    def delivered(self, number: Number, wait_s: float) -> None:
        """A batch was delivered, after the loop had waited so long for it."""
        self._waiting.append((number, wait_s if self._begun else 0.0))
        self._begun = True
        if len(self._waiting) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Count what was delivered."""
        with self._counting:
            run: list[tuple[Number, float]] = []
            follows: tuple[int, int, int] | None = None
            while self._waiting:
                one = self._waiting.popleft()
                plan_id, epoch, k = number = one[0]
                if number != follows:
                    self._count(run)
                    run = []
                run.append(one)
                follows = plan_id, epoch, k + 1
            self._count(run)

    def _count(self, run: list[tuple[Number, float]]) -> None:
        if run and self.count is not None:
            self.count(run)

    def add(self, samples: Sequence[int], wait_s: float) -> None:
        """Batches with so many samples of each, which were waited for: each by its share.

        The wait for the very first batch, in which workers start, is not counted.
        """
        per_sample_s = wait_s / max(1, sum(samples))
        for source, count in enumerate(samples):
            if count:
                self._samples[source] += count
                self._wait_s[source] += count * per_sample_s

    def snapshot(self) -> dict[str, SourceStats]:
        """By name."""
        self.flush()
        total = max(1, sum(self._samples))
        return {
            name: SourceStats(
                samples, samples / total, None if tokens is None else samples * tokens, wait_s
            )
            for name, samples, tokens, wait_s in zip(
                self._names, self._samples, self._tokens, self._wait_s, strict=True
            )
        }
