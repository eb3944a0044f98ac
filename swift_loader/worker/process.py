"""A local worker process. Role: makes batches for one consumer, one after the other.

Receives on its channel: `Make`, `Forget`, `SetPlan`, or `Long` in place of one. Sends: `Ready` or
`StartFailed` once, then `Made` (with a descriptor when the slot's region is new), `Failed`,
`Skipped` or, of a stream, `Exhausted` for every `Make`.

It ends when the channel closes, and only then: SIGINT and SIGTERM are for the training process,
which may be writing a checkpoint and still wants batches.
"""

from __future__ import annotations

import os
import time
from collections import deque
from functools import partial

from swift_loader.plan import Plan
from swift_loader.transport.channel import Channel, ChannelClosedError
from swift_loader.transport.memory import map_shared
from swift_loader.transport.messages import (
    Exhausted,
    Failed,
    Forget,
    Long,
    Make,
    Message,
    Ready,
    SetPlan,
    Skipped,
    StartFailed,
)
from swift_loader.transport.table import pack, unpack
from swift_loader.transport.written_slots import WrittenSlots
from swift_loader.worker.birth import Birth, BirthError, enter, leave, read_payload
from swift_loader.worker.maker import EndOfShard, Job, MakeError
from swift_loader.worker.place import Place
from swift_loader.worker.progress import Progress
from swift_loader.worker.told import TellingMaker, maker_of
from swift_loader.worker.zygote import Inherited, Spawn

__all__ = ["Worker", "main"]


_LOOK_S = 0.001  # between looks for new messages while there are orders to work on


def main(spawn: Spawn, inherited: Inherited) -> None:
    """The whole life of a worker; does not return."""
    channel, progress = enter(spawn, inherited)
    worker = Worker(spawn.index, spawn.place, channel, progress, Birth(spawn.place, spawn.index))
    leave(worker.live(inherited.payload))


class Worker:
    """What any worker on this machine does, in whatever it runs."""

    def __init__(
        self, index: int, place: Place, channel: Channel, progress: Progress, birth: Birth
    ) -> None:
        self._index = index
        self._channel = channel
        self._progress = progress
        self._plans: dict[int, Plan] = {}
        self._inbox: deque[tuple[int, Job]] = deque()  # with its ticket
        self._forgotten: set[int] = set()
        self._maker: TellingMaker | None = None
        self._place = place
        self._consumer = place.consumer_index
        self._slots = WrittenSlots(f"batch-{self._consumer}-{index}")
        self._birth = birth

    def live(self, payload_fd: int) -> int:
        """From its birth to its end; returns its exit status. The descriptor is the worker's."""
        status = 0
        try:
            if self._prepare(payload_fd):
                self._serve()
            else:
                status = 1
        except ChannelClosedError:
            pass  # the training process does not want us any more
        finally:
            self._close()
            os.close(payload_fd)
        return status

    def _prepare(self, payload_fd: int) -> bool:
        """Be born, and say `Ready`; or `StartFailed`, and it is False."""
        birth = self._birth
        try:
            birth.complete(partial(read_payload, payload_fd))
        except BirthError as error:
            self._say(StartFailed(error.fault))
            return False
        self._maker = maker_of(birth, self._place, self._index, self._progress)
        self._say(Ready(birth.nb_samples, birth.dataset_name, birth.lengths))
        return True

    def _serve(self) -> None:
        slots, inbox, channel = self._slots, self._inbox, self._channel
        looked_s = 0.0
        while True:
            now_s = time.perf_counter()
            if not inbox or now_s - looked_s > _LOOK_S:
                looked_s = now_s
                for kind, payload in channel.receive(wait=not inbox):
                    self._take(unpack(kind, payload))
                if not inbox:
                    continue
            ticket, make = inbox.popleft()
            if ticket in self._forgotten:
                self._forgotten.discard(ticket)
                self._say(Skipped(ticket))
                continue
            try:
                made = make(slots)
            except EndOfShard as end:
                slots.abandon()
                self._say(Exhausted(ticket, end.state))
            except MakeError as error:
                slots.abandon()
                self._say(Failed(ticket, error.fault))
            else:
                grown = slots.grown()
                self._say(made, (grown[0],) if grown else ())
                slots.sent()

    def _close(self) -> None:
        self._channel.close()
        self._slots.abandon()
        if self._maker is not None:
            self._maker.close()
        self._birth.close()

    def _take(self, message: Message) -> None:
        match message:
            case Make():
                assert self._maker is not None
                plan = self._plans[message.number.plan_id]
                job = self._maker.job(message, plan, self._consumer)
                self._inbox.append((message.ticket, job))
            case Forget():
                waiting = {ticket for ticket, _ in self._inbox}
                self._forgotten |= message.tickets & waiting
            case SetPlan():
                self._plans[message.plan_id] = message.plan
            case Long():
                self._take(self._apart(message))
            case _:
                raise TypeError(f"a worker does not take {type(message).__name__}")

    def _apart(self, long: Long) -> Message:
        fd = self._channel.take_fd()
        try:
            with map_shared(fd, long.nbytes) as region:
                message: Message = unpack(long.kind, region[:])
        finally:
            os.close(fd)
        return message

    def _say(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        self._channel.send(*pack(message), fds)
