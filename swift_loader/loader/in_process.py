"""Batches made in the training process itself: ``worker_per_consumer=0``.

In place of a pipeline. The same code as in a worker makes the same batches, with the same draws,
when the loop asks for one; there is no process and no thread. So breakpoints and profilers see the
data set at work, and an error has its own traceback. The data set is the user's own object, as with
torch's ``num_workers=0``, and `torch.utils.data.get_worker_info()` is None.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swift_loader.batch.fetch import BadSampleError
from swift_loader.batch.identity import staying_here
from swift_loader.batch.seeding import generators_untouched
from swift_loader.errors import ClosedError, TooManyBadSamplesError
from swift_loader.loader.delivering import Delivering
from swift_loader.order.order import Order
from swift_loader.order.part import EpochPart, Number
from swift_loader.pipeline.item import Item
from swift_loader.pipeline.link import HeldParcel, MadeBatch
from swift_loader.plan import Plan
from swift_loader.telemetry.metrics import Meter
from swift_loader.transport.messages import Made, Make
from swift_loader.transport.slots import skeleton_of
from swift_loader.transport.written_slots import WrittenSlots
from swift_loader.worker.maker import EndOfShard, MakeError
from swift_loader.worker.place import Place
from swift_loader.worker.progress import Progress
from swift_loader.worker.recipe import Recipe, build_dataset, lengths_of_sources
from swift_loader.worker.told import made_by

__all__ = ["InProcess"]

_SLOT = 0


class InProcess(Delivering):
    """What an epoch's iterator asks of a pipeline. `finish` is called on each batch."""

    def __init__(
        self,
        recipe: Recipe,
        place: Place,
        meter: Meter,
        decoder: Callable[[bytes, NDArray[np.uint8]], Any] | None,
        finish: Callable[[Any], Any] | None,
        max_bad_samples: int | None,
        log: Callable[[str], object],
    ) -> None:
        dataset, self.nb_samples = build_dataset(recipe)
        self.lengths = lengths_of_sources(dataset)
        progress = Progress(memoryview(bytearray(Progress.NBYTES)))
        self._maker = made_by(recipe, dataset, self.nb_samples, place, 0, progress, log)
        self._consumer = place.consumer_index
        self._meter = meter
        self._decoder = decoder
        self._finish = finish
        self._slots = WrittenSlots("in-process")
        self._plans: dict[int, Plan] = {}
        self._part: EpochPart | None = None
        self._batches: Iterator[tuple[Number, bytes]] = iter(())
        self._classes: dict[int, type] = {}  # of batches
        self._ends: dict[int, dict[int, bytes]] = {}  # by epoch: how a stream stands at its end
        self._max_bad = max_bad_samples
        self._nb_bad = 0
        self._closed = False

    def set_plan(self, plan_id: int, plan: Plan) -> None:
        """Numbers with this `plan_id` mean this plan."""
        self._plans[plan_id] = plan

    def prefetch(self, part: EpochPart, order: Order) -> None:
        """Nothing is made ahead."""

    def begin(self, part: EpochPart, order: Order) -> None:
        """Deliver `part` from now on."""
        self._part, self._batches, self._nb_bad = part, order.batches(part), 0

    def next(self, part: EpochPart) -> tuple[Number, Item] | None:
        """The next batch of `part`, or an error in its place; None at the end."""
        if self._closed:
            raise ClosedError("the loader is closed; build a new one to go on")
        found = next(self._batches, None) if part is self._part else None
        if found is None:
            return None
        number, details = found
        item = Item(0)
        try:
            with generators_untouched(), staying_here(self._classes):
                self._make(number, details, item)
        except EndOfShard as end:
            self._ends = {number.epoch: {0: end.state} if end.state else {}}
            return None
        except MakeError as error:
            item.fault = _original(error)
        except Exception as error:  # noqa: BLE001 - raised in its turn
            item.fault = error
        return number, item

    def _make(self, number: Number, details: bytes, item: Item) -> None:
        job = self._maker.job(
            Make(0, number, _SLOT, details), self._plans[number.plan_id], self._consumer
        )
        made = job(self._slots)
        self._slots.sent()
        self._count_bad(made)
        data = self._slots.written(_SLOT, made.used_bytes)
        skeleton = skeleton_of(data, made.skeleton, made.skeleton_bytes)
        parcel = HeldParcel(skeleton, data.copy())  # the slot is used again for the next batch
        item.made = MadeBatch(
            0, made.nb_samples, made.times, parcel, made.bad, made.state, made.made_at_s
        )
        item.decode(self._decoder)
        if item.fault is None and self._finish is not None:
            item.batch = self._finish(item.batch)
        item.on_device_at_s = time.perf_counter()

    def _count_bad(self, made: Made) -> None:
        for sample in made.bad:
            self._nb_bad += 1
            count = self._meter.replaced if sample.replaced else self._meter.skipped
            count(sample.index, sample.error)
        if self._max_bad is not None and self._nb_bad > self._max_bad:
            raise TooManyBadSamplesError(
                f"{self._nb_bad} samples of this epoch were bad, max_bad_samples={self._max_bad}; "
                f"the last: {made.bad[-1].error}"
            )

    def shard_ends(self, epoch: int) -> dict[int, bytes]:
        """How a stream stands at the end, if it can tell."""
        return self._ends.get(epoch, {})

    def loop_waited(self, waited_s: float, now_s: float) -> None:
        """The loop's waiting is the making."""

    def close(self) -> None:
        """Let the data set go."""
        self._closed = True
        self._maker.close()
        self._slots = WrittenSlots("in-process")


def _original(error: MakeError) -> BaseException:
    """What the user's code raised, with its traceback."""
    cause: BaseException = error
    while isinstance(cause, MakeError) and cause.__context__ is not None:  # a stream's says where
        cause = cause.__context__
    if isinstance(cause, BadSampleError):
        cause = cause.__cause__ or cause
    return cause
