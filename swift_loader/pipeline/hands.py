"""Carrying out what the books want done. Role: the hands of a shell, which holds the lock.

Messages are queued under that lock, so that they reach a worker in the order in which the books
thought of them. Whatever may take time is noted down, and done after it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from swift_loader.pipeline.actions import (
    Action,
    Dismiss,
    Drop,
    Halt,
    Kill,
    Launch,
    Reap,
    Recall,
    Send,
    Teach,
    Tell,
)
from swift_loader.pipeline.lacking import Launches, is_lack
from swift_loader.pipeline.link import Link
from swift_loader.pipeline.reader import Waiter
from swift_loader.telemetry.metrics import Meter

__all__ = ["Hands", "Later"]

Later = list[Callable[[], object]]  # what is done after the lock


class Hands:
    """The links of one pipeline, and what is done with them.

    `launchers`: how each worker is started, by its number. `waiters`: they share the links. `lock`:
    the shell's. `no_room` is told of a worker that can't be started now, and why.
    """

    def __init__(
        self,
        launchers: Mapping[int, Callable[[int], Link]],
        waiters: Sequence[Waiter],
        lock: threading.Lock,
        meter: Meter,
        logger: Any,
        no_room: Callable[[int, str], None],
    ) -> None:
        self._launchers = launchers
        self._waiters = waiters
        self._lock = lock
        self._meter = meter
        self._logger = logger
        self._no_room = no_room
        self.launches = Launches()  # to come
        self.links: dict[int, Link] = {}  # by worker, under the lock; each may be used after it
        self._leaving: list[Link] = []  # were told to end, and do so in their own time
        self._closed = False

    def queue(self, actions: list[Action], later: Later) -> BaseException | None:
        """Under the lock: queue messages, and note down in `later` what comes after it.

        Returns what ends the pipeline.
        """
        if not actions:
            return None
        told: dict[int, Link] = {}
        end: BaseException | None = None
        try:
            for action in actions:
                if type(action) is Send:
                    link = told[action.worker] = self.links[action.worker]
                    link.make(action.ticket, action.number, action.details)
                elif type(action) is Halt:
                    end = end or action.error
                else:
                    self._queue_other(action, told, later)
        except Exception as error:  # noqa: BLE001 - no memory for a message; the loop gets it
            end = end or error
        later[:0] = [link.flush for link in told.values()]
        return end

    def _queue_other(self, action: Action, told: dict[int, Link], later: Later) -> None:
        match action:
            case Recall(worker=worker, tickets=tickets):
                link = told[worker] = self.links[worker]
                link.forget(tickets)
            case Teach(worker=worker, plan_id=plan_id, plan=plan):
                link = told[worker] = self.links[worker]
                link.set_plan(plan_id, plan)
            case Launch(worker=worker, at_s=at_s) if at_s:
                self.launches.put(worker, at_s)
            case Launch(worker=worker):
                later.append(partial(self._launch, worker))
            case Reap(worker=worker):
                later.append(partial(self._reap, self.links.pop(worker)))
            case Dismiss(worker=worker):
                link, before = self.links.pop(worker), self._leaving
                self._leaving = [link]
                later.append(partial(self._dismiss, link, before))
            case Kill(worker=worker, why=why):
                later.append(partial(self.links[worker].kill, why))
            case Drop(item=item):
                if item.made is not None and not item.decoded:
                    later.append(item.made.parcel.discard)
            case Tell():
                later.append(partial(self._tell, action))

    def _launch(self, worker: int) -> None:
        try:
            link = self._launchers[worker](worker)
        except OSError as error:
            if not is_lack(error):
                raise
            self._no_room(worker, str(error))
            return
        with self._lock:
            closed = self._closed
            if not closed:
                self.links[worker] = link
        if closed:
            link.close()
            link.wait_closed(time.monotonic())
        else:
            self._waiter_of(worker).add(link)

    def launch_due(self) -> Later:
        """Under the lock: what starts those whose time has come."""
        return [partial(self._launch, one) for one in self.launches.due(time.monotonic())]

    def _waiter_of(self, worker: int) -> Waiter:
        return self._waiters[worker % len(self._waiters)]

    def _reap(self, link: Link) -> None:
        self._waiter_of(link.worker).discard(link)
        link.wait_closed(time.monotonic())

    def _dismiss(self, link: Link, before: Sequence[Link]) -> None:
        """A worker that owes nothing ends, in its own time; those before it have had that."""
        for earlier in before:
            earlier.wait_closed(time.monotonic())
        self._waiter_of(link.worker).discard(link)
        link.close()

    def _tell(self, tell: Tell) -> None:
        worker, text = tell.worker, tell.text
        match tell.what:
            case "started":
                self._meter.worker_started(worker, tell.pid)
            case "stopped":
                self._meter.worker_stopped(worker)
            case "restarted":
                self._meter.worker_restarted(worker, None, text)
                self._logger.warning("{}", text)
            case "more" | "fewer":
                self._logger.info("{}", text)
                step = 1 if tell.what == "more" else -1
                self._meter.event("workers", worker=worker, step=step, text=text)
            case "given up" | "slow":
                self._logger.warning("{}", text)
            case "bad":
                for sample in tell.bad:
                    what = "replaced" if sample.replaced else "skipped"
                    count = self._meter.replaced if sample.replaced else self._meter.skipped
                    count(sample.index, sample.error)
                    self._logger.warning("sample {} was {}: {}", sample.index, what, sample.error)

    def let_go(self) -> list[Link]:
        """Under the lock: no worker is launched any more. The links, which the caller closes."""
        links = [*self.links.values(), *self._leaving]
        self.links, self._leaving, self._closed = {}, [], True
        return links
