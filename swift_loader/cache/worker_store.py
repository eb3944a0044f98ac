"""A worker's end of the cache: what its maker asks of it around each batch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from swift_loader.batch.arena import Arena
from swift_loader.batch.asynchronous import Loop
from swift_loader.batch.fetch import Source
from swift_loader.cache.ahead import Ahead
from swift_loader.cache.client import Use
from swift_loader.cache.draws import Watched
from swift_loader.cache.hand import ByHand, set_current
from swift_loader.cache.kept import Kept
from swift_loader.cache.messages import UNPLANNED
from swift_loader.cache.naming import StoreName
from swift_loader.order.part import Number
from swift_loader.plan import Plan

__all__ = ["WorkerStore"]


class WorkerStore:
    """The cache of one data set in one worker.

    `copies`: code of the user's sees the samples. `watched`: the data set's name, where it is
    refused to draw random numbers. `trial`: nothing is kept.
    """

    def __init__(
        self,
        name: StoreName,
        consumer: int,
        nb_threads: int,
        copies: bool,
        watched: str | None,
        trial: bool,
    ) -> None:
        self._name = name
        self._consumer = consumer
        self._nb_threads = nb_threads
        self._copies = copies
        keeps = name.samples and not trial
        self._kept = Kept(name, consumer, copies=copies) if keeps else None
        self.source: Source | None = self._kept
        if watched is not None and name.samples:
            self.source = Watched(watched, self._kept)
        self._ahead: Ahead | None = None
        self._by_hand = ByHand(None if trial else name, consumer)
        set_current(self._by_hand)

    @property
    def gather(self) -> Callable[[list[int], Arena], Any] | None:
        """Makes a batch straight out of the store, where only our own collate sees samples."""
        return None if self._kept is None or self._copies else self._kept.gather

    def read_ahead(self, dataset: Any, loop: Loop | None, pool: ThreadPoolExecutor | None) -> None:
        """Read ahead from now on, where the data set waits for I/O and so can be asked ahead."""
        if self._kept is not None and (loop is not None or pool is not None):
            self._ahead = Ahead(self._name, self._consumer, dataset, loop, pool, self._nb_threads)

    def ordered(self, plan: Plan, number: Number, planned: list[int]) -> None:
        """A batch was ordered; `planned` is empty where its keys are a sampler's."""
        if self._kept is None or not planned:
            return
        course, use = self._course_of(plan, number)
        self._kept.ordered(course, use, planned)
        if self._ahead is not None:
            self._ahead.want(plan, number.epoch, self._consumer, number.k, use.variant)

    def begin(self, plan: Plan, number: Number, by_sampler: bool) -> None:
        """A batch is made now."""
        if self._kept is None:
            return
        if by_sampler:
            variant = variant_of(plan.calls)
            self._kept.begin(None, Use(variant, UNPLANNED, 0, self._consumer))
            return
        self._kept.begin(*self._course_of(plan, number))
        if self._ahead is not None:
            self._ahead.begun(number.epoch, number.k)

    def _course_of(self, plan: Plan, number: Number) -> tuple[Plan | None, Use]:
        """The plan that ordinary epochs go by, if this one does, and what its samples are for."""
        use = Use(variant_of(plan.calls), number.epoch, number.k, self._consumer)
        if plan.spans is not None:
            return None, use
        return (replace(plan, calls=()) if plan.calls else plan), use

    def end(self) -> None:
        """It is made, or can't be."""
        if self._kept is not None:
            self._kept.end()

    def close(self) -> None:
        """Leave the store."""
        set_current(None)
        for part in (self._ahead, self._kept, self._by_hand):
            if part is not None:
                part.close()


@lru_cache(maxsize=16)
def variant_of(calls: tuple[str, ...]) -> int:
    """What a data set was told, as a number: its samples are others then. 0: nothing."""
    if not calls:
        return 0
    digest = blake2b("\0".join(calls).encode(), digest_size=8).digest()
    return 1 + (int.from_bytes(digest, "little") >> 2)
