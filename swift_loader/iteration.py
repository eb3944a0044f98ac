"""One epoch of a loader, as the training loop sees it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NoReturn

from swift_loader.errors import ClosedError
from swift_loader.pipeline.core import Pipeline
from swift_loader.pipeline.delivery import Taken
from swift_loader.pipeline.item import Item
from swift_loader.pipeline.schedule import EpochPart
from swift_loader.pipeline.staging import Stager
from swift_loader.telemetry.metrics import BatchTimes, Meter
from swift_loader.telemetry.trace import TraceWriter
from swift_loader.transport.messages import Number

__all__ = ["EpochIterator", "Standing"]


class Standing:
    """Where the training loop stands in a part of an epoch.

    The loader keeps this and not the iterator, which keeps the loader: so both are freed, and all
    that they hold is closed, as soon as nobody has them.
    """

    def __init__(self, part: EpochPart) -> None:
        self.part = part
        self.taken = Taken(part)
        self.streams: dict[int, bytes] = {}  # where the shards of a stream stand, by worker
        self.ended = False  # `StopIteration` was raised
        self.overtaken = False  # by a later iterator, or a loaded state

    @property
    def alive(self) -> bool:
        """Whether this is what the loader is at."""
        return not self.ended and not self.overtaken


class EpochIterator(Iterator[Any]):
    """Yields the batches of one part of an epoch, and counts what was delivered.

    `owner` is held so that a loader lives as long as somebody iterates it.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        stager: Stager | None,
        meter: Meter,
        trace: TraceWriter | None,
        standing: Standing,
        owner: Any,
    ) -> None:
        self._pipeline = pipeline
        self._stager = stager
        self._meter = meter
        self._trace = trace
        self._standing = standing
        self._owner = owner

    @property
    def part(self) -> EpochPart:
        """What it iterates."""
        return self._standing.part

    def __len__(self) -> int:
        return self._standing.part.size

    def __next__(self) -> Any:
        standing = self._standing
        if not standing.alive:
            if standing.ended:
                raise StopIteration
            raise ClosedError(
                "another iteration of the same loader has begun, or a state was loaded; one loader "
                "is one stream of batches, build a second one to iterate twice at once"
            )
        began_s = time.perf_counter()
        if self._stager is None:
            depth = self._pipeline.depth
            found = self._pipeline.next(standing.part)
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
        standing.taken.add(number.k)
        if item.made is not None and item.made.state:
            standing.streams[item.worker] = item.made.state
        self._count(number, item, depth, to_device_s, began_s)
        return batch

    def _count(
        self, number: Number, item: Item, depth: int, to_device_s: float, began_s: float
    ) -> None:
        now_s = time.perf_counter()
        made = item.made
        assert made is not None
        times = BatchTimes(
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
        self._meter.add(times)
        self._pipeline.loop_waited(times.wait_s, now_s)
        if self._trace is not None:
            self._trace.batch(
                times,
                made_at_s=made.made_at_s,
                decoded_at_s=item.decoded_at_s,
                on_device_at_s=item.on_device_at_s,
            )

    def _end(self, at_s: float) -> NoReturn:
        self._standing.ended = True
        self._meter.epoch_ends(at_s)
        raise StopIteration
