"""The batches of one consumer, for a worker that makes one after the other.

A worker looks up neighbouring small batches together, a few hundred samples at a time. That costs a
third of looking up each batch by itself, and of a mixture a tenth.
"""

from __future__ import annotations

from .keys import key64
from .plan import Plan

__all__ = ["Neighbours"]

_SAMPLES = 512
_SAMPLES_OF_MIXTURE = 2048
_NEAR = 4  # batches are looked up together where at least one in so many was asked for


class Neighbours:
    """The batches of `consumer`. A worker may ask for any plan, epoch and batch, in any order."""

    def __init__(self, consumer: int) -> None:
        self.consumer = consumer
        self._plan: Plan | None = None
        self._epoch = -1
        self._asked = -1  # the latest batch
        self._first = self._last = 0  # those that were looked up
        self._odd = 0  # of those before, not all have the same size
        self._indices: list[int] = []
        self._size = 0
        self._key = 0

    def batch(self, plan: Plan, epoch: int, k: int) -> tuple[list[int], int]:
        """The sample indices of a batch, and its seed; IndexError if there is no such batch."""
        if plan is self._plan and epoch == self._epoch:
            if not self._first <= k < self._last:
                self._look_up(plan, epoch, k)
            self._asked = k
            if self._first <= k < self._last:
                start = (k - self._first) * self._size
                return self._indices[start : start + self._size], key64(self._key, k)
        else:
            self._plan, self._epoch, self._asked = plan, epoch, k
            self._first = self._last = self._odd = 0
        consumer = self.consumer
        return plan.batch(epoch, consumer, k).tolist(), plan.batch_seed(epoch, consumer, k)

    def _look_up(self, plan: Plan, epoch: int, k: int) -> None:
        """The batches around `k`, if more of them will be asked for, and are all of one size."""
        self._first = self._last = 0
        size = plan.full_batch
        if not size or k < self._odd:
            return
        count = (_SAMPLES if plan.mixture is None else _samples_of_mixture(plan)) // size
        if not 0 < k - self._asked <= count // _NEAR:
            return
        first = k - k % count
        # The last two may be short.
        last = min(first + count, plan.nb_batches(self.consumer) - 2)
        if k >= last:
            return
        indices: list[int] = plan.batches(epoch, self.consumer, first, last).tolist()
        if len(indices) != (last - first) * size:  # before a resume they had another size
            self._odd = last
            return
        self._first, self._last, self._size = first, last, size
        self._indices = indices
        self._key = plan.seed_key(epoch, self.consumer)


def _samples_of_mixture(plan: Plan) -> int:
    """More, since each source costs a look-up of its own; of all consumers together."""
    return max(_SAMPLES, _SAMPLES_OF_MIXTURE // plan.nb_consumer)
