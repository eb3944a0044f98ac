"""One epoch of a loader, as the training loop sees it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NoReturn

from swift_loader.errors import ClosedError
from swift_loader.pipeline.core import Item, Pipeline
from swift_loader.pipeline.delivery import Taken
from swift_loader.pipeline.schedule import EpochPart
from swift_loader.pipeline.staging import Stager
from swift_loader.telemetry.metrics import BatchTimes, Meter
from swift_loader.transport.messages import Number

__all__ = ["EpochIterator"]


class EpochIterator(Iterator[Any]):
    """Yields the batches of one part of an epoch, and counts what was delivered.

    `owner` is held so that a loader lives as long as somebody iterates it.
    """

    def __init__(
        self, pipeline: Pipeline, stager: Stager | None, meter: Meter, part: EpochPart, owner: Any
    ) -> None:
        self._pipeline = pipeline
        self._stager = stager
        self._meter = meter
        self._owner = owner
        self.part = part
        self.taken = Taken(part)
        self.begun = False
        self.alive = True  # not at its end, and no later iterator of the loader has begun
        self._ended = False

    def __len__(self) -> int:
        return len(self.part)

    def __next__(self) -> Any:
        if not self.alive:
            if self._ended:
                raise StopIteration
            raise ClosedError(
                "another iteration of the same loader has begun; one loader is one stream of "
                "batches, build a second one to iterate twice at once"
            )
        began_s = time.perf_counter()
        if self._stager is None:
            depth = self._pipeline.depth
            found = self._pipeline.next()
            if found is None:
                self._end(began_s)
            number, item = found
            batch, to_device_s = item.batch, 0.0
            item.batch = None
        else:
            depth = self._stager.depth
            staged = self._stager.next()
            if staged is None:
                self._end(began_s)
            assert staged.number is not None
            assert staged.item is not None
            number, item, batch = staged.number, staged.item, staged.batch
            to_device_s = staged.to_device_s
        self.begun = True
        self.taken.add(number.k)
        self._count(number, item, depth, to_device_s, began_s)
        return batch

    def _count(
        self, number: Number, item: Item, depth: int, to_device_s: float, began_s: float
    ) -> None:
        now_s = time.perf_counter()
        made = item.made
        assert made is not None
        self._meter.add(
            BatchTimes(
                item.worker,
                number.epoch,
                number.k,
                made.nb_samples,
                made.parcel.nbytes,
                *made.times,
                0.0,
                item.decode_s,
                to_device_s,
                now_s - began_s,
                depth,
                now_s,
            )
        )

    def end(self) -> None:
        """A later iterator takes over."""
        self.alive = False

    def _end(self, at_s: float) -> NoReturn:
        self.alive = False
        self._ended = True
        self._meter.epoch_ends(at_s)
        raise StopIteration
