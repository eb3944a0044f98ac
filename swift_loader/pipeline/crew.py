"""The workers of one consumer, as links: started, waited on, replaced, added, sent away, ended.

Role: part of the training process. It decides nothing about batches; the pipeline tells it whom to
start and whom to let go, and gets every event of every link.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Literal

from swift_loader.errors import LoaderError
from swift_loader.pipeline.link import Event, Link
from swift_loader.pipeline.reader import ReaderThread, Waiter
from swift_loader.pipeline.scaling import Scaling

__all__ = ["Crew", "Threads"]

Threads = Literal["none", "one", "per worker"]  # that read what workers send

_CLOSE_GRACE_S = 1.0


class Crew:
    """See the module's text.

    `launchers`: how each worker is started, by its number. `awaited`: those that are elsewhere.
    `auto`: begin with one of the others, and take more by need. `handle` gets the events.
    """

    def __init__(
        self,
        launchers: Mapping[int, Callable[[int], Link]],
        awaited: Collection[int],
        threads: Threads,
        auto: bool,
        handle: Callable[[Link, list[Event]], None],
    ) -> None:
        self._launchers = launchers
        self._awaited = awaited
        self._handle = handle
        self._lock = threading.Lock()  # over `links` and `_closed`, and nothing slow
        self._closed = False
        self._leaving: list[Link] = []  # were told to end, and do so in their own time
        self.links: dict[int, Link] = {}
        self.up: set[int] = set()  # those that take orders
        self.given_up: dict[int, str] = {}  # those that are not replaced, and why
        self.launched_at_s = 0.0  # `time.monotonic` of the latest start
        self.scaling = Scaling(len(launchers) - len(awaited)) if auto else None
        self.readers: list[ReaderThread] = []
        self.waiter: Waiter | None = None
        if threads == "none":
            self.waiter = Waiter()
        else:
            count = 1 if threads == "one" else max(1, len(launchers))
            self.readers = [ReaderThread(f"swift_loader-reader-{i}", handle) for i in range(count)]

    # ---- who works

    def first(self) -> Collection[int]:
        """The workers to begin with."""
        return {0, *self._awaited} if self.scaling is not None else self._launchers

    @property
    def ready(self) -> bool:
        """Whether one takes orders, and each of those elsewhere does, or was given up."""
        return bool(self.up) and all(w in self.up or w in self.given_up for w in self._awaited)

    @property
    def exhausted(self) -> bool:
        """Whether all were given up."""
        return len(self.given_up) == len(self._launchers)

    def local(self) -> list[int]:
        """The workers at work that are not elsewhere."""
        return [worker for worker in self.links if worker not in self._awaited]

    def spare(self) -> int:
        """A worker that could be started beside those at work."""
        return next(worker for worker in self._launchers if worker not in self.links)

    # ---- coming and going

    def launch(self, worker: int) -> LoaderError | None:
        """Start a worker, or another one in its place; returns why there is no use in trying."""
        self.launched_at_s = time.monotonic()
        try:
            link = self._launchers[worker](worker)
        except LoaderError as error:
            return error
        with self._lock:
            closed = self._closed
            self.links[worker] = link
        if closed:
            link.close()
            link.wait_closed(time.monotonic())
        else:
            self._waiter_of(worker).add(link)
        return None

    def let_go(self, link: Link) -> None:
        """A worker that owes nothing ends, in its own time; the one before it has had that."""
        while self._leaving:
            self._leaving.pop().wait_closed(time.monotonic())
        self._waiter_of(link.worker).discard(link.worker)
        link.close()
        self._leaving.append(link)

    def _waiter_of(self, worker: int) -> Waiter:
        return self.waiter or self.readers[worker % len(self.readers)].waiter

    def in_own_thread(self) -> bool:
        """Whether it is a reader that calls: it may be anywhere in the books then."""
        return any(reader.is_current for reader in self.readers)

    def close(self) -> None:
        """End all workers and threads. Not to be called by a reader."""
        with self._lock:
            self._closed = True
            links = [*self.links.values(), *self._leaving]
        for reader in self.readers:
            reader.close()
        if self.waiter is not None:
            self.waiter.close()
        for link in links:
            link.close()
        deadline_s = time.monotonic() + _CLOSE_GRACE_S
        for link in links:
            link.wait_closed(deadline_s)
