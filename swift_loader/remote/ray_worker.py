"""A worker that is a Ray actor. Role: makes batches for one consumer, one after the other.

Its methods are its messages; Ray queues them in order. A batch is what `make` returns: the array
over the slot's bytes goes into Ray's object store, from where the training process maps it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from swift_loader.plan import Plan
from swift_loader.transport.messages import ErrorReport, Made, Make
from swift_loader.transport.written_slots import WrittenSlots
from swift_loader.worker.birth import Birth, BirthError, settle, step
from swift_loader.worker.maker import MakeError
from swift_loader.worker.place import Place
from swift_loader.worker.progress import Progress
from swift_loader.worker.settings import apply_settings
from swift_loader.worker.told import TellingMaker, maker_of

__all__ = ["RayWorker"]

_SLOT = 0  # one is enough: Ray has copied it when `make` has returned
_NONE = -1


class RayWorker:
    """See the module's text. Wrapped by `ray.remote` where it is started."""

    def __init__(self) -> None:
        self._progress = Progress(memoryview(bytearray(Progress.NBYTES)))
        self._slots = WrittenSlots("ray")
        self._plans: dict[int, Plan] = {}
        self._maker: TellingMaker | None = None
        self._consumer = 0
        self._at = _NONE  # the ticket of the last order
        self._forgotten: set[int] = set()

    def prepare(
        self,
        payload: NDArray[np.uint8],
        place: Place,
        index: int,
        settings: Mapping[str, bytes],
    ) -> tuple[int | None, str, int, float, tuple[int, ...]] | ErrorReport:
        """Be born; what `Up` says of the dataset, or why it can't be had.

        `settings` are the training process's, as far as they mean something on another machine.
        """
        self._consumer = place.consumer_index
        birth = Birth(place, index)
        try:
            with step("taking over the settings of the training process"):
                apply_settings(settings)
                settle(place, index, os.environ)
            birth.complete(lambda: memoryview(payload.copy()))
            with step("building the dataset"):
                if birth.nb_samples is None:
                    raise TypeError("a stream's shards belong to local workers")
        except BirthError as error:
            return error.fault
        self._maker = maker_of(birth, place, index, self._progress)
        return birth.nb_samples, birth.dataset_name, 1, 0.0, birth.lengths

    def set_plan(self, plan_id: int, plan: Plan) -> None:
        """Numbers with this `plan_id` mean this plan."""
        self._plans[plan_id] = plan

    def make(self, order: Make) -> tuple[Made, NDArray[np.uint8]] | ErrorReport | None:
        """The batch, or why there is none; None where it was forgotten."""
        assert self._maker is not None
        self._at = order.ticket
        if order.ticket in self._forgotten:
            self._forgotten.discard(order.ticket)
            return None
        plan = self._plans[order.number.plan_id]
        try:
            made = self._maker.job(order, plan, self._consumer)(self._slots)
        except MakeError as error:
            self._slots.abandon()
            return error.fault
        self._slots.sent()
        return made, self._slots.written(_SLOT, made.used_bytes)

    def forget(self, tickets: frozenset[int]) -> None:
        """Don't make these; orders have rising tickets. Runs while `make` does."""
        self._forgotten.update(ticket for ticket in tickets if ticket > self._at)

    def where(self) -> str:
        """What it is at, and its Python stacks. Answers while `make` runs."""
        ticket, sample, stage = self._progress.read()
        stacks = [
            "".join(traceback.format_stack(frame))
            for frame in sys._current_frames().values()
            if any("maker.py" in one.filename for one in traceback.extract_stack(frame))
        ]
        return f"{stage} (ticket {ticket}, sample {sample})\n" + "\n".join(stacks)
