"""The processes of one reading service, as the training process sees them.

Role: the training process; used by one thread at a time, whichever iterates, but for `interrupt`.
Sends `Begin`, `Connect`, `Give`. Waits for all its processes at once, on their sockets and on their
ends.

A worker that dies is replaced where its items can be made again: another one begins the same epoch
with the same seeds and drops what was received already. Not behind a dispatching process (what it
dealt out is gone), nor where the same item has ended two workers, nor for ever.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import time
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from swift_loader.batch.shipping import pack
from swift_loader.dataloader2.random import SeedGenerator
from swift_loader.dataloader2.reading_service.interface import IterResetFn
from swift_loader.dataloader2.workers.feed import Feed
from swift_loader.dataloader2.workers.link import PipeLink
from swift_loader.dataloader2.workers.wire import Begin
from swift_loader.errors import ClosedError, WorkerDiedError
from swift_loader.pipeline.link import Event, Gone, Refused, Running, Up
from swift_loader.pipeline.supervision import Deaths, Verdict
from swift_loader.transport.memory import filled_region
from swift_loader.transport.wakeup import Wakeup
from swift_loader.worker.faults import revive
from swift_loader.worker.launch import Zygote
from swift_loader.worker.place import Place

__all__ = ["PipeWorkers", "PipeWorkersPlan"]

_CLOSE_GRACE_S = 1.0


@dataclass(frozen=True)
class PipeWorkersPlan:
    """Which processes, and what they are given (see `workers.process`)."""

    nb_worker: int
    nb_ahead: int  # items a worker
    worker_parts: Any
    dispatcher_parts: Any | None
    place: Place
    max_restarts: int


class PipeWorkers:
    """Workers by index `0 .. nb_worker - 1`; the dispatching process, if any, comes after them."""

    def __init__(self, plan: PipeWorkersPlan) -> None:
        self._plan = plan
        self._pid = os.getpid()
        self._zygote: Zygote | None = None
        self._payloads: list[tuple[int, list[object]]] = []  # and what workers open of it here
        self._links: list[PipeLink] = []
        self._feeds = [Feed(plan.nb_ahead) for _ in range(plan.nb_worker)]
        self._begins: list[Begin] = []
        self._taken = [0] * plan.nb_worker
        self._deaths = Deaths(plan.max_restarts)
        self._epoch = 0
        self._poll = select.poll()
        self._link_of: dict[int, int] = {}
        self._wakeup = Wakeup()
        self._interrupted = False
        self._closed = False

    # ---- the life of the processes

    def _start(self) -> None:
        plan = self._plan
        for parts in (plan.worker_parts, plan.dispatcher_parts):
            if parts is not None:
                payload = pack({"parts": parts})
                region = filled_region(payload.nbytes, "pipes", payload.write)
                self._payloads.append((region, payload.kept))
        self._zygote = Zygote.acquire()
        _open.add(self)
        for worker in range(plan.nb_worker):
            self._links.append(self._launch(worker))
        if plan.dispatcher_parts is not None:
            dispatcher = self._launch(plan.nb_worker)
            self._links.append(dispatcher)
            for worker in range(plan.nb_worker):
                near, far = socket.socketpair()
                with near, far:
                    self._links[worker].connect(worker, near)
                    dispatcher.connect(worker, far)
        self._watch()

    def _launch(self, number: int) -> PipeLink:
        assert self._zygote is not None
        is_worker = number < self._plan.nb_worker
        name = f"worker process {number}" if is_worker else "the dispatching process"
        payload_fd = self._payloads[0 if is_worker else 1][0]
        return PipeLink(self._zygote, number, self._plan.place, payload_fd, name)

    def _watch(self) -> None:
        self._poll = select.poll()
        self._poll.register(self._wakeup, select.POLLIN)
        self._link_of = {fd: i for i, link in enumerate(self._links) for fd in link.filenos()}
        for fd in self._link_of:
            self._poll.register(fd, select.POLLIN)

    def interrupt(self) -> None:
        """Make whoever waits for an item raise `ClosedError`. From any thread, before `close`."""
        if not self._closed and self._pid == os.getpid():
            self._interrupted = True
            self._wakeup.wake()

    def close(self) -> None:
        """End all processes; those that do not end by themselves within a second are killed."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        for link in self._links:
            link.close()
        deadline_s = time.monotonic() + _CLOSE_GRACE_S
        for link in self._links:
            link.wait_closed(deadline_s)
        for fd, _ in self._payloads:
            os.close(fd)
        self._wakeup.close()
        if self._zygote is not None:
            self._zygote.release()

    # ---- an epoch

    def begin(self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn | None) -> None:
        """Let all processes begin another epoch, whatever they are at. Does not wait for them.

        Worker i gets the spawned generator i. Raises `ShippingError` where the graph or a function
        can't travel, `WorkerDiedError` where no process can be started.
        """
        if not self._links:
            self._start()
        shipped = b""
        if iter_reset_fn is not None:
            shipped = bytes(pack({"iter_reset_fn": iter_reset_fn}))
        self._epoch += 1
        self._deaths.epoch_begins()
        self._taken = [0] * self._plan.nb_worker
        self._begins = [
            Begin(self._epoch, seed_generator.spawn(i), shipped) for i in range(len(self._links))
        ]
        for link, begin in zip(self._links, self._begins, strict=True):
            link.begin(begin)
        for feed, link in zip(self._feeds, self._links, strict=False):
            feed.begin(self._epoch, link)

    def items(self) -> Iterator[Any]:
        """The items of the epoch, one of each worker by turns, without those that have ended.

        Raises what a worker's graph raised, with its original type and the worker's traceback as
        the cause; `WorkerDiedError`; `ClosedError` after `interrupt`.
        """
        workers = list(range(self._plan.nb_worker))
        while workers:
            for worker in list(workers):
                feed = self._feeds[worker]
                if not feed.items:
                    self._wait_for(worker, feed)
                if feed.items:
                    item = feed.items.popleft()
                    self._taken[worker] += 1
                    feed.ask(self._links[worker])
                    yield item
                    del item  # the consumer's alone from here on: it holds a slot
                elif feed.fault is not None:
                    raise revive(feed.fault, f"worker process {worker}")
                else:
                    workers.remove(worker)

    def _wait_for(self, worker: int, feed: Feed) -> None:
        while not feed.is_settled:
            if self._interrupted:
                raise ClosedError("The reading service was shut down in the middle of an epoch.")
            ready = {self._link_of.get(fd) for fd, _ in self._poll.poll()}
            for number in ready:
                if number is not None:
                    for event in self._links[number].receive():
                        self._take(number, event)

    def _take(self, number: int, event: Event) -> None:
        match event:
            case Running() | Up():
                pass
            case Refused(fault=fault):
                raise revive(fault, self._links[number].name)
            case Gone():
                self._replace(number, event)
            case _:
                self._feeds[number].take(event)

    def _replace(self, number: int, gone: Gone) -> None:
        """Put a new worker in the place of a dead one, or raise."""
        feed = self._feeds[number] if number < len(self._feeds) else None
        received = 0 if feed is None else self._taken[number] + len(feed.items)
        at = f"{gone.story}\n{received} items of the epoch had come from it"
        if gone.sample is not None:
            at += f"; the last item that it began is {gone.sample}"
        if feed is None or self._plan.dispatcher_parts is not None:
            raise WorkerDiedError(
                f"{at}\nItems that go through sharding_round_robin_dispatch can't be made again, "
                "so the epoch can't go on"
            )
        at_work = gone.ticket is not None  # an idle one did not die of the next item
        work = (self._epoch, number, received)
        verdict = self._deaths.died(work if at_work else None, outside=gone.outside)
        if verdict is Verdict.SAME_AGAIN:
            raise WorkerDiedError(
                f"{at}\nThe same item has ended {self._deaths.of(work)} workers, so it is not "
                "tried again: run the graph over it in this process (num_workers=0)"
            )
        if verdict is Verdict.TOO_MANY:
            raise WorkerDiedError(
                f"{at}\nAll max_worker_restarts={self._plan.max_restarts} of the epoch are used up"
            )
        warnings.warn(
            f"{at}\nAnother worker takes its place: it makes the items of this epoch again, "
            "with the same seeds, and passes over those that had come. Items are lost or repeated "
            "if the graph does not yield the same ones again.",
            RuntimeWarning,
            stacklevel=2,
        )
        dead = self._links[number]
        dead.close()
        dead.wait_closed(time.monotonic())
        link = self._links[number] = self._launch(number)
        self._watch()
        link.begin(replace(self._begins[number], nb_skip=received))
        feed.go_on(link)


# Closed while the interpreter still works: a loader that a script leaves open is freed too late.
_open: weakref.WeakSet[PipeWorkers] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for workers in list(_open):
        workers.interrupt()
        workers.close()
