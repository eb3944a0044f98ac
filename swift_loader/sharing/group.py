"""Ranks of one consumer on one host: one set of workers, one copy of a batch in memory.

The *leader* has the workers. It publishes each batch when its own loop takes it, and reads it back
like the others (`Subscription`): everybody has a view of the same memory, copy-on-write. A batch's
slot is free when the last tensor over it is gone, in whichever rank.

Nobody here has a thread: whoever takes a batch of the leader (its loop, or its stager) serves the
others. An epoch that is begun has a number of its own, so that what is left of one that was left
early is passed over.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from swift_loader.errors import ClosedError, LoaderError
from swift_loader.loader.delivering import Delivering
from swift_loader.order.order import Order
from swift_loader.order.part import EpochPart, Number
from swift_loader.pipeline.item import Item
from swift_loader.pipeline.link import HeldParcel, MadeBatch
from swift_loader.pipeline.shell import Pipeline
from swift_loader.plan import Plan
from swift_loader.sharing.audience import Audience
from swift_loader.sharing.history import Band
from swift_loader.sharing.messages import (
    VERSION,
    Admit,
    Batch,
    Dropped,
    Ended,
    EpochBegins,
    EpochEnds,
    Join,
)
from swift_loader.sharing.port import Port, PortOwner
from swift_loader.sharing.regions import OwnSlots, RegionTable
from swift_loader.sharing.subscription import Subscription
from swift_loader.transport.channel import ChannelClosedError
from swift_loader.transport.messages import StageTimes

__all__ = ["Leader", "Member"]

_MAX_SENT = 10
_MAX_KEPT = 16
_CONNECT_S = 60.0
_FAREWELL_S = 2.0
_END = object()
_OPENED = HeldParcel(b"", np.empty(0, np.uint8))  # of batches that come as they are


class _Reader:
    """One rank's end: the batches of the epoch that it is in."""

    def __init__(self, port: str) -> None:
        channel = Port(port).connect(_CONNECT_S)
        hello = Join(VERSION, "rank of a group", "epoch")
        self.channel = channel
        self._subscription = Subscription(channel, hello, _MAX_KEPT, copy_on_device=False)

    def next(self, number: int) -> Any:
        """The next batch of the epoch with this number; `_END` where the leader has no more."""
        while True:
            try:
                message = self._subscription.next_message()
            except ChannelClosedError:
                raise LoaderError(
                    "the rank of this group that has the workers is gone: see its own error"
                ) from None
            match message:
                case Batch(epoch=epoch):
                    batch = self._subscription.open(message)
                    self._subscription.taken()
                    if epoch == number:
                        return batch
                    del batch  # of an epoch that was left
                case EpochEnds(epoch=epoch) if epoch == number:
                    return _END
                case Admit(report_every=report_every):
                    self._subscription.report_every = report_every
                case Dropped(reason=reason):
                    raise LoaderError(f"the rank of this group that has the workers: {reason}")
                case Ended():
                    return _END
                case _:
                    pass  # an epoch's beginning, or the end of another one

    def leave(self) -> None:
        self._subscription.leave()

    def hang_up(self) -> None:
        self._subscription.lost()
        self.channel.close()


class _Lengths:
    """What an `Audience` asks of epochs. Nobody here needs to be told."""

    def __init__(self) -> None:
        self.number = 0

    def following(self) -> EpochBegins:
        return EpochBegins(self.number + 1, 0, None, None)

    def rest(self, first: int) -> EpochBegins:
        return EpochBegins(self.number, first, None, None)


class Leader(Delivering):
    """Has the workers. `port` is the address for the other ranks, `nb_ranks` with this one.

    Give `on_map` to the pipeline, then the pipeline to `leading`.
    """

    def __init__(self, nb_ranks: int) -> None:
        self.port = f"group-{secrets.token_hex(8)}"
        owner = PortOwner(Port(self.port))
        self._regions = RegionTable()
        self._slots = OwnSlots(self._regions)
        self._lengths = _Lengths()
        self._audience = Audience(
            owner, self._lengths, self._regions, Band(0.0, 0, 0), _MAX_SENT, float("inf"), nb_ranks
        )
        self._reader = _Reader(self.port)
        self._inner: Pipeline | None = None
        self._part: tuple[EpochPart | None, int] = (None, 0)  # and its number, as `Member` counts
        self._begun: EpochPart | None = None
        self._closed = False
        self._serving = threading.Lock()

    @property
    def on_map(self) -> Any:
        """Is to be told of every slot's region."""
        return self._regions.on_map

    def leading(self, pipeline: Pipeline) -> Leader:
        """Hand on the batches of this pipeline, which come as they lie."""
        self._inner = pipeline
        return self

    # ---- as a pipeline

    @property
    def pipeline(self) -> Pipeline:
        assert self._inner is not None
        return self._inner

    @property
    def depth(self) -> int:
        """Batches that are ready."""
        return self.pipeline.depth

    @property
    def next_is_ready(self) -> bool:
        """Whether `next` would not wait for workers."""
        return self.pipeline.next_is_ready

    def set_plan(self, plan_id: int, plan: Plan) -> None:
        """See `Pipeline`."""
        self.pipeline.set_plan(plan_id, plan)

    def prefetch(self, part: EpochPart, order: Order) -> None:
        """See `Pipeline`."""
        self.pipeline.prefetch(part, order)

    def begin(self, part: EpochPart, order: Order) -> None:
        """Deliver `part` from now on."""
        self.pipeline.begin(part, order)
        self._part = part, self._part[1] + 1

    def next(self, part: EpochPart) -> tuple[Number, Item] | None:
        """The next batch of `part`, published to all; None at its end."""
        found = self.pipeline.next(part)
        with self._serving:  # `close` waits for it, and for nothing else
            return self._publish(part, found)

    def _publish(
        self, part: EpochPart, found: tuple[Number, Item] | None
    ) -> tuple[Number, Item] | None:
        if self._closed:
            raise ClosedError("the loader is closed; build a new one to go on")
        if self._begun is not part:
            begun, number = self._part
            if begun is not part:
                return None  # left before anybody got a batch of it
            self._begin(part, number)
        if found is None:
            self._audience.end_epoch()
            return None
        item = found[1]
        while not self._audience.wait_for_room(time.monotonic()):
            self._serve()
        if item.fault is not None:
            self._audience.drop_all(f"{type(item.fault).__name__}: {item.fault}")
            return found
        shared = self._slots.take(item.batch)
        item.batch = None
        self._audience.publish(shared)
        del shared
        self._audience.serve(0.0)
        item.batch = self._reader.next(self._lengths.number)
        return found

    def _begin(self, part: EpochPart, number: int) -> None:
        self._audience.end_epoch()
        self._begun = part
        self._lengths.number = number
        self._audience.begin(EpochBegins(number, 0, None, None))

    def _serve(self) -> None:
        if self._closed:
            raise ClosedError("the loader is closed; build a new one to go on")
        self._audience.serve(None)

    def loop_waited(self, waited_s: float, now_s: float) -> None:
        """See `Pipeline`."""
        self.pipeline.loop_waited(waited_s, now_s)

    def in_own_thread(self) -> bool:
        """See `Pipeline`."""
        return self._inner is not None and self._inner.in_own_thread()

    def close(self) -> None:
        """End the workers; ranks that are a few batches behind still get them."""
        self._closed = True
        self._reader.hang_up()  # whoever serves the others in another thread wakes up
        if self._inner is not None:
            self._inner.close()
        with self._serving:
            self._audience.finish(time.monotonic() + _FAREWELL_S)
            self._audience.close()


class Member(Delivering):
    """Takes the leader's batches. No workers."""

    def __init__(self, port: str) -> None:
        self._reader = _Reader(port)
        self._part: EpochPart | None = None
        self._number = 0
        self._batches: Iterator[tuple[Number, bytes]] = iter(())
        self._order: Order | None = None
        self._closed = False

    def set_plan(self, plan_id: int, plan: Plan) -> None:
        """The leader's workers know."""

    def prefetch(self, part: EpochPart, order: Order) -> None:
        """The leader does."""

    def begin(self, part: EpochPart, order: Order) -> None:
        """Deliver `part` from now on."""
        self._batches, self._order = order.batches(part), order
        self._number += 1
        self._part = part

    def next(self, part: EpochPart) -> tuple[Number, Item] | None:
        """The next batch of `part`; None at its end."""
        if self._closed:
            raise ClosedError("the loader is closed; build a new one to go on")
        if part is not self._part:
            return None
        number_of_epoch, order = self._number, self._order
        found = next(self._batches, None)
        if found is None or order is None:
            return None
        number, details = found
        batch = self._reader.next(number_of_epoch)
        if batch is _END:
            raise LoaderError(
                f"the rank of this group that has the workers left epoch {number.epoch} before "
                f"batch {number.k}: all ranks of a group must take the same batches"
            )
        nb_samples = len(order.samples(number, details))
        made = MadeBatch(0, nb_samples, StageTimes(0, 0, 0), _OPENED)
        item = Item(0, made, batch=batch, decoded=True)
        item.decoded_at_s = item.on_device_at_s = time.perf_counter()
        return number, item

    def loop_waited(self, waited_s: float, now_s: float) -> None:
        """It is the leader's workers that are waited for."""

    def close(self) -> None:
        """Leave; batches that are held stay valid."""
        self._closed = True
        self._reader.leave()
