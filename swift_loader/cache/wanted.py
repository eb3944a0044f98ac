"""When what is kept is wanted next, as far as the store's books know. Pure.

While there is room for all, nobody needs to know. Once room is scarce, each sample's time is kept
up to date: see the rules of `swift_loader.cache.books`.
"""

from __future__ import annotations

import math

import numpy as np

from swift_loader.cache.farthest import Farthest
from swift_loader.cache.held import Key, Sample
from swift_loader.cache.messages import UNPLANNED, Ask, Rows
from swift_loader.cache.schedule import NEVER, Reach, Schedule
from swift_loader.plan import Plan

__all__ = ["Wanted"]


class Wanted:
    """`order`: what is in memory, each with the time when it is wanted. `is_short`: room is."""

    def __init__(self) -> None:
        self.order: Farthest[Key] = Farthest()
        self.is_short = False
        self._course: Plan | None = None
        self._schedule = Schedule(None)
        self._reach = Reach(0)
        self._variant = 0
        self._variant_since = -1  # epoch

    def follow(self, plan: Plan) -> None:
        """Epochs go by this plan from now on."""
        if plan != self._course:
            self._course = plan
            self._schedule = Schedule(plan)
            self._reach = Reach(self._schedule.steps)
            self._forget_times()  # until they are asked for again

    def note(self, ask: Ask) -> None:
        """Once an epoch: what was not used in its time has another one."""
        if ask.variant != self._variant and ask.epoch > self._variant_since:
            self._forget_times()
            self._variant, self._variant_since = ask.variant, ask.epoch
        if ask.ahead or not self._schedule.steps:
            return
        reach = self._reach
        if not reach.note(ask.epoch, ask.k) or not self.is_short:
            return
        # Consumers may be an epoch apart: what the one before may still use is left as it is.
        begin = self._schedule.time(ask.epoch - 1, 0)
        known = begin + reach.batches if reach.has_changed else math.inf
        stale = self.order.outside(begin, known)
        times = self._after(np.array([number for _, number in stale], np.int64), ask.epoch - 1)
        for key, time in zip(stale, times.tolist(), strict=True):
            self.order.put(key, time if key[0] == self._variant else NEVER)

    def times(self, ask: Ask, samples: list[Sample]) -> list[int]:
        """When each of these is wanted again after this."""
        if ask.epoch == UNPLANNED or ask.variant != self._variant or not self._schedule.steps:
            return [NEVER] * len(samples)
        numbers = np.array([sample.key[1] for sample in samples], np.int64)
        found: list[int] = self._after(numbers, ask.epoch).tolist()
        return found

    def times_of_new(self, rows: list[list[int]]) -> list[int]:
        """When each sample of these rows of `Room`, all for one batch, is wanted next."""
        if not rows:
            return []
        variant, _, epoch, k, ahead, *_ = rows[0]
        if epoch == UNPLANNED or variant != self._variant or not self._schedule.steps:
            return [NEVER] * len(rows)
        if ahead:
            return [self._schedule.time(epoch, k)] * len(rows)
        numbers = np.array([row[1] for row in rows], np.int64)
        found: list[int] = self._after(numbers, epoch).tolist()
        return found

    def may_go_after(self, time: int) -> int:
        """What is wanted after this may go for a sample that is wanted at `time`.

        That is what the epoch of `time` doesn't reach, and where epochs end early, what is wanted
        most of an epoch later: its place is free again by then.
        """
        steps, reach = self._schedule.steps, self._reach.batches
        if time == NEVER or not steps:
            return NEVER
        end = self._schedule.time(time // steps, reach)
        return end if reach == steps else min(end, time + reach * 3 // 4)

    def fall_short(self) -> None:
        """Room is scarce from now on: know when each sample is wanted, as if it always had been."""
        self.is_short = True
        epoch, deepest = self._reach.epoch, self._reach.deepest
        if epoch < 0:
            return
        keys = [key for key in self.order.outside(NEVER + 1) if key[0] == self._variant]
        numbers = np.array([number for _, number in keys], np.int64)
        wanted = self._after(numbers, epoch - 1)
        used = wanted < self._schedule.time(epoch, deepest)
        wanted[used] = self._after(numbers[used], epoch)
        for key, time in zip(keys, wanted.tolist(), strict=True):
            self.order.put(key, time)

    # ---- inside

    def _forget_times(self) -> None:
        for key in self.order.outside(NEVER):
            self.order.put(key, NEVER)

    def _after(self, numbers: Rows, epoch: int) -> Rows:
        """When these are wanted next after their use in `epoch`, by epochs as long as the last."""
        return self._schedule.after(numbers, epoch, self._reach.batches)
