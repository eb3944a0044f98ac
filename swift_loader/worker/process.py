"""A local worker process. Role: makes batches for one consumer, one after the other.

Receives on its channel: `Make`, `Forget`, `SetPlan`. Sends: `Ready` or `StartFailed` once, then
`Made` (with a descriptor when the slot's region is new), `Failed`, `Skipped` or, of a stream,
`Exhausted` for every `Make`.

It ends when the channel closes, and only then: SIGINT and SIGTERM are for the training process,
which may be writing a checkpoint and still wants batches.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import random
import signal
import socket
import sys
import time
from collections import deque
from typing import Any, NoReturn

import numpy as np
import numpy.random  # at once for all workers: numpy itself imports it when it is first used
import torch
import torch.utils.data
from torch.utils.data._utils import worker as torch_worker

from swift_loader.batch.shipping import unpack as unpack_parts
from swift_loader.plan import Plan
from swift_loader.telemetry.log import open_log, worker_role
from swift_loader.transport.channel import Channel, ChannelClosedError
from swift_loader.transport.memory import map_private, map_shared
from swift_loader.transport.messages import (
    Exhausted,
    Failed,
    Forget,
    Make,
    Message,
    Ready,
    SetPlan,
    Skipped,
    StartFailed,
)
from swift_loader.transport.table import pack, unpack
from swift_loader.transport.written_slots import WrittenSlots
from swift_loader.worker.faults import report
from swift_loader.worker.maker import EndOfShard, Job, MakeError, Maker
from swift_loader.worker.place import Place
from swift_loader.worker.progress import Progress
from swift_loader.worker.recipe import Recipe, build_dataset
from swift_loader.worker.stream import StreamMaker
from swift_loader.worker.zygote import STACK_SIGNAL, Inherited, Spawn

__all__ = ["announce", "enter", "leave", "main"]


_LOOK_S = 0.001  # between looks for new messages while there are orders to work on


def main(spawn: Spawn, inherited: Inherited) -> None:
    """The whole life of a worker; does not return."""
    channel, progress = enter(spawn, inherited)
    worker = _Worker(spawn.index, spawn.place, channel, progress)
    status = 0
    try:
        worker.prepare(inherited.payload)
        worker.serve()
    except ChannelClosedError:
        pass  # the training process does not want us any more
    except _CouldNotStartError:
        status = 1
    worker.close()
    leave(status)


def enter(spawn: Spawn, inherited: Inherited) -> tuple[Channel, Progress]:
    """What every kind of worker begins with: the training process's surroundings."""
    # A process that the dataset starts by forking is nobody's worker: it ends as it is told.
    os.register_at_fork(after_in_child=_restore_signals)
    os.environ.clear()
    os.environ.update(spawn.environ)
    os.chdir(spawn.cwd)
    sys.path[:] = spawn.sys_path
    sys.argv[:] = spawn.argv
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL, file=inherited.stack, all_threads=True)
    affinity = spawn.place.affinity
    if affinity and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, affinity[spawn.index % len(affinity)])
    torch.set_num_threads(int(spawn.environ.get("OMP_NUM_THREADS") or 1))
    progress_map = map_shared(inherited.progress, Progress.NBYTES)
    os.close(inherited.progress)
    channel = Channel(socket.socket(fileno=inherited.channel))
    return channel, Progress(memoryview(progress_map))


def leave(status: int) -> NoReturn:
    """What every kind of worker ends with."""
    atexit._run_exitfuncs()  # what the dataset registered, and its process pools
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _restore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


class _CouldNotStartError(Exception):
    """The dataset could not be built; `StartFailed` was sent."""


class _Worker:
    def __init__(self, index: int, place: Place, channel: Channel, progress: Progress) -> None:
        self._index = index
        self._channel = channel
        self._progress = progress
        self._plans: dict[int, Plan] = {}
        self._inbox: deque[tuple[int, Job]] = deque()  # with its ticket
        self._forgotten: set[int] = set()
        self._maker: Maker | StreamMaker | None = None
        self._place = place
        self._consumer = place.consumer_index
        self._log: Any = None

    def prepare(self, payload_fd: int) -> None:
        """Unpack the user's things and build the dataset; say `Ready` or `StartFailed`."""
        doing = "unpacking the dataset's class and arguments"
        try:
            size = os.fstat(payload_fd).st_size
            region = map_private(payload_fd, size)
            os.close(payload_fd)
            parts = unpack_parts(memoryview(region))
            recipe = Recipe(**parts)
            place = self._place
            if place.log is not None:
                self._log = open_log(place.log, worker_role(self._consumer, self._index))
                self._log.logger.info("worker started, pid {}", os.getpid())
            seed = (place.seed + self._index) % 2**32
            random.seed(seed)
            np.random.seed(seed)
            torch.default_generator.manual_seed(seed)
            if recipe.worker_init_fn is not None:
                doing = "running worker_init_fn"
                recipe.worker_init_fn(self._index)
            doing = "building the dataset"
            dataset, nb_samples = build_dataset(recipe)
            announce(place, self._index, dataset, seed)
            if nb_samples is None:
                self._maker = StreamMaker(recipe, dataset, place, self._index, self._progress)
            else:
                self._maker = Maker(recipe, dataset, nb_samples, self._progress)
        except (Exception, SystemExit) as error:
            self._say(StartFailed(report(error, doing)))
            raise _CouldNotStartError from error
        self._say(Ready(nb_samples, type(dataset).__qualname__))

    def serve(self) -> None:
        slots = WrittenSlots(f"batch-{self._consumer}-{self._index}")
        inbox, channel = self._inbox, self._channel
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
            except EndOfShard:
                slots.abandon()
                self._say(Exhausted(ticket))
            except MakeError as error:
                slots.abandon()
                self._say(Failed(ticket, error.fault))
            else:
                grown = slots.grown()
                self._say(made, (grown[0],) if grown else ())
                slots.sent()

    def close(self) -> None:
        self._channel.close()
        if self._maker is not None:
            self._maker.close()
        if self._log is not None:
            self._log.logger.info("worker ends")
            self._log.close()

    def _take(self, message: Message) -> None:
        match message:
            case Make():
                assert self._maker is not None
                if message.indices_bytes:
                    message = message._replace(indices=self._indices_of(message))
                plan = self._plans[message.number.plan_id]
                job = self._maker.job(message, plan, self._consumer)
                self._inbox.append((message.ticket, job))
            case Forget():
                waiting = {ticket for ticket, _ in self._inbox}
                self._forgotten |= message.tickets & waiting
            case SetPlan():
                self._plans[message.plan_id] = message.plan
            case _:
                raise TypeError(f"a worker does not take {type(message).__name__}")

    def _indices_of(self, order: Make) -> bytes:
        fd = self._channel.take_fd()
        try:
            with map_shared(fd, order.indices_bytes) as region:
                return region[:]
        finally:
            os.close(fd)

    def _say(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        self._channel.send(*pack(message), fds)


def announce(place: Place, index: int, dataset: Any, seed: int) -> None:
    """`torch.utils.data.get_worker_info()` shows the place among all consumers' workers."""
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=place.consumer_index * place.worker_per_consumer + index,
        num_workers=place.nb_consumer * place.worker_per_consumer,
        seed=seed,
        dataset=dataset,
    )
