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

__all__ = ["MOST_SAMPLES", "NEVER", "Reach", "Schedule"]

NEVER = 2**62
MOST_SAMPLES = 1 << 26
"""Of longer data sets nothing is worked out: four bytes a sample and epoch would be too many."""
_STEP = 1 << 16  # positions that are looked up together
_SETTLED_AFTER = 32  # batches
_MOST_EPOCHS = 8  # that are looked at for a use that comes before an epoch's early end
_MOST_KNOWN = 1 << 25  # samples, over all epochs that are kept worked out


class Reach:
    """How far epochs are gone through before they are left: as far as the last one was.

    `epoch`: the latest that a batch was asked for, -1 for none; `deepest`: batches that were asked
    for of it; `batches`: of the epoch before. As an epoch begins, consumers and workers are still
    at the last batches of the one before, so `batches` is told some batches later.
    """

    def __init__(self, steps: int) -> None:
        self.batches = self._before = steps
        self.epoch = -1
        self.deepest = 0
        self.has_changed = False
        self._settled_after = min(_SETTLED_AFTER, steps // 32)
        self._is_settled = True

    def note(self, epoch: int, k: int) -> bool:
        """Batch `k` is asked for. True once an epoch, when `batches` is of the one before."""
        if epoch > self.epoch:
            if not self._is_settled:
                self.batches = self._before
            if self.epoch >= 0:
                self._before = self.deepest
            self.epoch, self.deepest, self._is_settled = epoch, 0, False
        if epoch == self.epoch:
            self.deepest = max(self.deepest, k + 1)
        elif epoch == self.epoch - 1:
            self._before = max(self._before, k + 1)
        if self._is_settled or self.deepest <= self._settled_after:
            return False
        self._is_settled = True
        self.has_changed = self.batches != self._before
        self.batches = self._before
        return True


class Schedule:
    """The future that a plan tells. Of a plan that is None, or too long, nothing is known."""

    def __init__(self, plan: Plan | None) -> None:
        known = plan is not None and 0 < plan.nb_samples <= MOST_SAMPLES
        self.plan = plan if known else None
        self.steps = 0
        if self.plan is not None:
            consumers = range(self.plan.nb_consumer)
            self.steps = max(self.plan.nb_batches(consumer) for consumer in consumers)
        nb_samples = self.plan.nb_samples if self.plan is not None else 1
        self._nb_epochs = min(max(2, _MOST_KNOWN // nb_samples), _MOST_EPOCHS)
        self._epoch = lru_cache(maxsize=self._nb_epochs + 1)(self._work_out)

    def time(self, epoch: int, k: int) -> int:
        """The time of batch `k`; `NEVER` where nothing is known."""
        return epoch * self.steps + k if self.steps else NEVER

    def after(
        self, samples: NDArray[np.int64], epoch: int, reach: int | None = None
    ) -> NDArray[np.int64]:
        """When each of `samples` is wanted next once `epoch` has had it: int64, the same shape.

        `reach`: the batches that epochs have before they are left, None: all. What is not reached
        in any of the next few epochs is wanted at `NEVER`.
        """
        times = np.full(len(samples), NEVER, np.int64)
        if self.plan is None or not self.steps:
            return times
        left = np.flatnonzero((samples >= 0) & (samples < self.plan.nb_samples))
        reach = self.steps if reach is None else reach
        for later in range(epoch + 1, epoch + 1 + (self._nb_epochs if reach < self.steps else 1)):
            if not len(left):
                break
            batches = self._epoch(later)[samples[left]]
            used = (batches >= 0) & (batches < reach)
            times[left[used]] = batches[used].astype(np.int64) + later * self.steps
            left = left[~used]
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
