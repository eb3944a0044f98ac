"""A worker that is a Ray actor. Role: makes batches for one consumer, one after the other.

Its methods are its messages; Ray queues them in order. A batch is what `make` returns: the array
over the slot's bytes goes into Ray's object store, from where the training process maps it.
"""

from __future__ import annotations

import random
import sys
import traceback

import numpy as np
import torch
from numpy.typing import NDArray

from swift_loader.batch.shipping import unpack
from swift_loader.plan import Plan
from swift_loader.transport.messages import ErrorReport, Made, Make
from swift_loader.transport.written_slots import WrittenSlots
from swift_loader.worker.faults import report
from swift_loader.worker.maker import MakeError, Maker
from swift_loader.worker.place import Place
from swift_loader.worker.progress import Progress
from swift_loader.worker.recipe import Recipe, build_dataset

__all__ = ["RayWorker"]

_SLOT = 0  # one is enough: Ray has copied it when `make` has returned


class RayWorker:
    """See the module's text. Wrapped by `ray.remote` where it is started."""

    def __init__(self) -> None:
        self._progress = Progress(memoryview(bytearray(Progress.NBYTES)))
        self._slots = WrittenSlots("ray")
        self._plans: dict[int, Plan] = {}
        self._maker: Maker | None = None
        self._consumer = 0

    def prepare(
        self, payload: NDArray[np.uint8], place: Place, index: int
    ) -> tuple[int | None, str] | ErrorReport:
        """Build the dataset; its length and name, or why it can't be had."""
        torch.set_num_threads(1)
        self._consumer = place.consumer_index
        doing = "unpacking the dataset's class and arguments"
        try:
            recipe = Recipe(**unpack(memoryview(payload.copy())))
            seed = (place.seed + index) % 2**32
            random.seed(seed)
            np.random.seed(seed)
            torch.default_generator.manual_seed(seed)
            if recipe.worker_init_fn is not None:
                doing = "running worker_init_fn"
                recipe.worker_init_fn(index)
            doing = "building the dataset"
            dataset, nb_samples = build_dataset(recipe)
            if nb_samples is None:
                raise TypeError("a stream's shards belong to local workers")
            self._maker = Maker(recipe, dataset, nb_samples, self._progress)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it goes to the training process
            return report(error, doing)
        return nb_samples, type(dataset).__qualname__

    def set_plan(self, plan_id: int, plan: Plan) -> None:
        """Numbers with this `plan_id` mean this plan."""
        self._plans[plan_id] = plan

    def make(self, order: Make) -> tuple[Made, NDArray[np.uint8]] | ErrorReport:
        """The batch, or why there is none."""
        assert self._maker is not None
        plan = self._plans[order.number.plan_id]
        try:
            made = self._maker.job(order, plan, self._consumer)(self._slots)
        except MakeError as error:
            self._slots.abandon()
            return error.fault
        self._slots.sent()
        return made, self._slots.written(_SLOT, made.used_bytes)

    def where(self) -> str:
        """What it is at, and its Python stacks. Answers while `make` runs."""
        ticket, sample, stage = self._progress.read()
        stacks = [
            "".join(traceback.format_stack(frame))
            for frame in sys._current_frames().values()
            if any("maker.py" in one.filename for one in traceback.extract_stack(frame))
        ]
        return f"{stage} (ticket {ticket}, sample {sample})\n" + "\n".join(stacks)
