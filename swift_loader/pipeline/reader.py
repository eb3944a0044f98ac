"""Reading what workers send. Roles: a `Waiter` (whoever waits), and `ReaderThread`.

Where a batch needs no work on its way (no device, no decoder of the user's), the training thread
reads for itself while it waits: handing a small batch from thread to thread costs more than the
batch. Otherwise reader threads (one a worker with `multithread`, else one for all) rebuild batches
while the training loop computes.

Nothing here polls: a waiter blocks on the workers' sockets, the processes' sentinels and its own
wake-up socket together.
"""

from __future__ import annotations

import contextlib
import select
import threading
from collections.abc import Callable

from swift_loader.pipeline.link import Event, Link, MadeBatch
from swift_loader.transport.wakeup import Wakeup

__all__ = ["ReaderThread", "Waiter"]


class Waiter:
    """Waits on some links. `wait` is for one thread; `add` and `wake` are for any."""

    def __init__(self) -> None:
        self._links: dict[int, Link] = {}  # by worker
        self._poll = select.poll()
        self._link_of: dict[int, Link] = {}  # by descriptor
        self._registered: dict[int, tuple[int, ...]] = {}  # by worker
        self._wakeup = Wakeup()
        self._poll.register(self._wakeup, select.POLLIN)
        self._changed = False

    def add(self, link: Link) -> None:
        """Wait on `link` from now on, in place of an earlier link of the same worker."""
        self._links[link.worker] = link
        self._changed = True
        self.wake()

    def discard(self, worker: int) -> None:
        """Don't wait on this worker any more."""
        self._links.pop(worker, None)
        self._changed = True
        self.wake()

    def wake(self) -> None:
        """Make `wait` return."""
        self._wakeup.wake()

    def wait(self, timeout_s: float | None) -> list[tuple[Link, list[Event]]]:
        """Events of the links that have something to say; empty after a timeout or a `wake`."""
        if self._changed:
            self._changed = False
            for worker in [w for w in self._registered if w not in self._links]:
                self._unregister(worker)
            for link in list(self._links.values()):
                self._register(link)
        found: list[tuple[Link, list[Event]]] = []
        seen: set[int] = set()
        for fd, _ in self._poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000)):
            readable = self._link_of.get(fd)
            if readable is None:
                self._wakeup.clear()
            elif readable.worker not in seen:
                seen.add(readable.worker)
                events = readable.receive()
                if not events or type(events[-1]) is not MadeBatch:
                    self._register(readable)  # one of its descriptors may have closed
                if events:
                    found.append((readable, events))
        return found

    def _register(self, link: Link) -> None:
        wanted = tuple(link.filenos())
        before = self._registered.get(link.worker, ())
        if wanted == before and all(self._link_of.get(fd) is link for fd in wanted):
            return
        for fd in before:
            if fd not in wanted or self._link_of.get(fd) is not link:
                self._link_of.pop(fd, None)
                with contextlib.suppress(KeyError):
                    self._poll.unregister(fd)
        for fd in wanted:
            self._poll.register(fd, select.POLLIN)
            self._link_of[fd] = link
        self._registered[link.worker] = wanted

    def _unregister(self, worker: int) -> None:
        for fd in self._registered.pop(worker):
            self._link_of.pop(fd, None)
            self._poll.unregister(fd)

    def close(self) -> None:
        """May come while another thread waits: it is woken."""
        self.wake()
        self._wakeup.close()


class ReaderThread:
    """A thread that waits on its links and hands every event on, until it is closed.

    A daemon, so that an interpreter that ends without `close` is not held up before its exit
    functions run; one of these closes and joins it.
    """

    def __init__(self, name: str, handle: Callable[[Link, list[Event]], None]) -> None:
        self.waiter = Waiter()
        self._handle = handle
        self._open = True
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._open:
            for link, events in self.waiter.wait(None):
                for event in events:  # one by one: a batch need not wait for the next one's decode
                    self._handle(link, [event])

    @property
    def is_current(self) -> bool:
        """Whether this is the thread that asks."""
        return self._thread is threading.current_thread()

    def close(self) -> None:
        """End the thread. Not to be called by itself."""
        self._open = False
        self.waiter.wake()
        self._thread.join()
        self.waiter.close()
