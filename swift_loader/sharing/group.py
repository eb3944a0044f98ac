"""Ranks of one consumer on one host: one set of workers, one copy of a batch in memory.

The *leader* has the workers. It publishes each batch when its own loop takes it, and reads it back
like the others (`Subscription`): everybody has a view of the same memory, copy-on-write. A batch's
slot is free when the last tensor over it is gone, in whichever rank.

A sampler draws ahead of the loop, and may change by that. So when the leader leaves an epoch early,
it says how far its sampler was asked, and the others' samplers are asked as far.

Nobody here has a thread: whoever takes a batch of the leader (its loop, or its stager) serves the
others. An epoch that is begun has a number of its own, so that what is left of one that was left
early is passed over.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import replace
from typing import Any

from swift_loader.errors import ClosedError
from swift_loader.loader.delivering import Delivering
from swift_loader.order.counted import CountedOrder
from swift_loader.order.order import Order
from swift_loader.order.part import EpochPart, Number, ShardsOver
from swift_loader.pipeline.item import Decoder, Item
from swift_loader.pipeline.shell import Pipeline
from swift_loader.plan import Plan
from swift_loader.sharing.audience import Audience
from swift_loader.sharing.group_reader import GroupReader
from swift_loader.sharing.history import Band
from swift_loader.sharing.messages import EpochBegins
from swift_loader.sharing.notes import EndNote, Note, packed
from swift_loader.sharing.port import Port, PortOwner
from swift_loader.sharing.regions import OwnSlots, RegionTable
from swift_loader.worker.faults import report

__all__ = ["Leader"]

_MAX_SENT = 10
_FAREWELL_S = 2.0


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

    `decoder`: see `GroupReader`.

    Give `on_map` to the pipeline, then the pipeline to `leading`.
    """

    def __init__(self, nb_ranks: int, decoder: Decoder | None) -> None:
        self.port = f"group-{secrets.token_hex(8)}"
        owner = PortOwner(Port(self.port))
        self._regions = RegionTable()
        self._slots = OwnSlots(self._regions)
        self._lengths = _Lengths()
        self._audience = Audience(
            owner, self._lengths, self._regions, Band(0.0, 0, 0), _MAX_SENT, float("inf"), nb_ranks
        )
        self._reader = GroupReader(self.port, decoder)
        self._inner: Pipeline | None = None
        self._part: tuple[EpochPart | None, int] = (None, 0)  # and its number, as `Member` counts
        self._order: Order | None = None
        self._counted: CountedOrder | None = None  # where a sampler draws
        self._asked: CountedOrder | None = None  # of the epoch before
        self._joined = False
        self._begun: EpochPart | None = None
        self._over: ShardsOver | None = None  # as the last note has it
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
        self._order, self._asked = order, self._counted
        self._counted = CountedOrder(order) if order.draws else None
        self._part = part, self._part[1] + 1  # before the pipeline says that another one ends
        self.pipeline.begin(part, self._counted or order)
        if order.draws:
            with self._serving:
                self._begin(part, self._part[1])
                while not self._joined and not self._audience.wait_for_room(time.monotonic()):
                    self._serve()
                self._joined = True

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
        over = self.pipeline.shards_over(part.epoch)
        if found is None:
            left = self._part[0] is not part
            if left and self._counted is not None:
                return None  # `begin` says how far the sampler was asked
            nb_asked = self._counted.nb_asked if self._counted is not None else None
            end = EndNote(self.pipeline.shard_ends(part.epoch), over, left, nb_asked)
            self._audience.end_epoch(packed(end))
            self._over = over
            return None
        number_of_batch, item = found
        while not self._audience.wait_for_room(time.monotonic()):
            self._serve()
        assert self._order is not None
        checksum = self._order.checksum(number_of_batch)
        note = Note(number_of_batch, item.worker, over=over, checksum=checksum)
        if item.fault is not None:
            told = item.report or report(item.fault, "decoding a batch")
            shared = self._slots.put(None)
            note = note._replace(report=told, where=item.where)
        else:
            assert item.made is not None
            shared = self._slots.take(item.batch)
            note = note._replace(nb_samples=item.made.nb_samples, state=item.made.state)
        item.batch = None
        self._audience.publish(replace(shared, note=packed(note)))
        del shared
        self._audience.serve(0.0)
        read = self._reader.next(self._lengths.number)
        assert isinstance(read, tuple)  # what was published just now
        item.batch, item.fault = read[1].batch, item.fault or read[1].fault
        self._over = over
        return found

    def _begin(self, part: EpochPart, number: int) -> None:
        nb_asked = self._asked.nb_asked if self._asked is not None else None
        self._audience.end_epoch(packed(EndNote({}, left=True, nb_asked=nb_asked)))
        self._begun, self._over = part, None
        self._lengths.number = number
        self._audience.begin(EpochBegins(number, 0, None, None))

    def _serve(self) -> None:
        if self._closed:
            raise ClosedError("the loader is closed; build a new one to go on")
        self._audience.serve(None)

    def shard_ends(self, epoch: int) -> dict[int, bytes]:
        """See `Pipeline`."""
        return self.pipeline.shard_ends(epoch)

    def shards_over(self, epoch: int) -> ShardsOver | None:
        """See `Pipeline`. As of the last batch, so that all ranks say the same."""
        begun = self._begun
        return self._over if begun is not None and begun.epoch == epoch else None

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
