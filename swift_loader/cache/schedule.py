"""When each sample is wanted, over the epochs to come, by all consumers. Pure.

A time is a number: ``epoch * steps + k`` for batch `k`, where an epoch has `steps` batches. A
sample is used once in an epoch (padding apart), so after its use in one epoch the next one says
when it is wanted again.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from swift_loader.plan import Plan

__all__ = ["MOST_SAMPLES", "NEVER", "Schedule"]

NEVER = 2**62
MOST_SAMPLES = 1 << 26
"""Of longer data sets nothing is worked out: four bytes a sample and epoch would be too many."""
_STEP = 1 << 16  # positions that are looked up together


class Schedule:
    """The future that a plan tells. Of a plan that is None, or too long, nothing is known."""

    def __init__(self, plan: Plan | None) -> None:
        known = plan is not None and 0 < plan.nb_samples <= MOST_SAMPLES
        self.plan = plan if known else None
        self.steps = 0
        if self.plan is not None:
            consumers = range(self.plan.nb_consumer)
            self.steps = max(self.plan.nb_batches(consumer) for consumer in consumers)
        self._epoch = lru_cache(maxsize=3)(self._work_out)

    def time(self, epoch: int, k: int) -> int:
        """The time of batch `k`; `NEVER` where nothing is known."""
        return epoch * self.steps + k if self.steps else NEVER

    def after(self, samples: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """When each of `samples` is wanted next once `epoch` has had it: int64, the same shape."""
        times = np.full(len(samples), NEVER, np.int64)
        if self.plan is None or not self.steps:
            return times
        inside = (samples >= 0) & (samples < self.plan.nb_samples)
        if inside.any():
            batches = self._epoch(epoch + 1)[samples[inside]]
            wanted = batches.astype(np.int64) + (epoch + 1) * self.steps
            times[inside] = np.where(batches < 0, NEVER, wanted)
        return times

    def _work_out(self, epoch: int) -> NDArray[np.int32]:
        """The batch number of each sample in `epoch`, -1 where nobody wants it."""
        plan = self.plan
        assert plan is not None
        found = np.full(plan.nb_samples, -1, np.int32)
        step = max(1, _STEP // plan.batch_size)
        for consumer in range(plan.nb_consumer):
            count = plan.nb_batches(consumer)
            for first in range(0, count, step):
                last = min(first + step, count)
                samples = plan.batches(epoch, consumer, first, last)
                numbers = np.minimum(first + np.arange(len(samples)) // plan.batch_size, last - 1)
                found[samples] = numbers
        return found
