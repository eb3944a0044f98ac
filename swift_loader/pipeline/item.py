"""A batch between its worker and the training loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swift_loader.batch.codec import decode
from swift_loader.pipeline.link import MadeBatch
from swift_loader.transport.messages import ErrorReport
from swift_loader.worker.faults import revive

__all__ = ["Decoder", "Item"]

Decoder = Callable[[bytes, NDArray[np.uint8]], Any]  # (skeleton, bytes of the slot) -> batch


@dataclass(slots=True)
class Item:
    """A batch (or an error in its place) that is ready to be delivered. Times as `perf_counter`."""

    worker: int
    made: MadeBatch | None = None
    report: ErrorReport | None = None  # in the place of a batch, from `where`
    where: str = ""
    fault: BaseException | None = None
    batch: Any = None
    decoded: bool = False
    early: bool = False  # decoded by a reader, ahead of the training loop
    decode_s: float = 0.0
    decoded_at_s: float = 0.0
    on_device_at_s: float | None = None

    def decode(self, decoder: Decoder | None) -> None:
        """Rebuild the batch, unless that was done; what it raises takes the batch's place."""
        if self.decoded:
            return
        if self.made is None:
            if self.report is not None:
                self.fault = revive(self.report, self.where)
            return
        began = time.perf_counter()
        skeleton, base = self.made.parcel.open()
        self.decoded = True
        try:
            self.batch = (decoder or decode)(skeleton, base)
        except Exception as error:  # noqa: BLE001 - the training loop gets it, in order
            self.fault = error
        self.decoded_at_s = time.perf_counter()
        self.decode_s = self.decoded_at_s - began
