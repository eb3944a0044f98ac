"""Reading what workers send. Roles: a `Waiter` (whoever waits), and `ReaderThread`.

Where a batch needs no work on its way (no device, no decoder of the user's), the training thread
reads for itself while it waits: handing a small batch from thread to thread costs more than the
batch. Otherwise reader threads (one a worker with `multithread`, else one for all) rebuild batches
while the training loop computes.

Nothing here polls: a waiter blocks on the workers' sockets, the processes' sentinels and its own
wake-up socket together, until the time at which a link has something to do by itself.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf

from swift_loader.pipeline.link import Event, Link, MadeBatch
from swift_loader.transport.wakeup import Wakeup

__all__ = ["ReaderThread", "Waiter"]

_LONGEST_WAIT_MS = 2**31 - 1  # what poll(2) takes


class Waiter:
    """Waits on some links. `wait` is for one thread; `add` and `wake` are for any."""

    def __init__(self) -> None:
        self._links: dict[int, Link] = {}  # by worker
        self._poll = select.poll()
        self._link_of: dict[int, Link] = {}  # by descriptor
        self._registered: dict[int, tuple[int, ...]] = {}  # by worker
        self._timed: list[Link] = []  # those that may have to do something at some time
        self._wakeup = Wakeup()
        self._poll.register(self._wakeup, select.POLLIN)
        self._changed = False

    def add(self, link: Link) -> None:
        """Wait on `link` from now on, in place of an earlier link of the same worker."""
        self._links[link.worker] = link
        self._changed = True
        self.wake()

    def discard(self, link: Link) -> None:
        """Don't wait on `link` any more."""
        if self._links.get(link.worker) is link:
            del self._links[link.worker]
        self._changed = True
        self.wake()

    def wake(self) -> None:
        """Make `wait` return."""
        self._wakeup.wake()

    def wait(self, timeout_s: float = inf) -> list[tuple[Link, list[Event]]]:
        """Events of the links that have something to say; empty after a timeout or a `wake`.

        It may also return sooner with nothing: whoever calls looks at the clock.
        """
        if self._changed:
            self._changed = False
            for worker in [w for w in self._registered if w not in self._links]:
                self._unregister(worker)
            for link in list(self._links.values()):
                self._register(link)
            self._timed = [link for link in self._links.values() if link.due_s is not None]
        if self._timed:
            timeout_s = min(timeout_s, self._next_due_s() - time.monotonic())
        found: list[tuple[Link, list[Event]]] = []
        seen: set[int] = set()
        for fd, _ in self._poll.poll(max(0.0, min(timeout_s * 1000, _LONGEST_WAIT_MS))):
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
        if self._timed and self._next_due_s() <= time.monotonic():
            due = ((link, link.receive()) for link in self._timed if link.worker not in seen)
            found += ((link, events) for link, events in due if events)
        return found

    def _next_due_s(self) -> float:
        return min(inf if link.due_s is None else link.due_s for link in self._timed)

    def _register(self, link: Link) -> None:
        wanted = tuple(link.filenos())
        before = self._registered.get(link.worker, ())
        if wanted == before and all(self._link_of.get(fd) is link for fd in wanted):
            return
        self._forget(link.worker, before)
        for fd in wanted:
            self._poll.register(fd, select.POLLIN)
            self._link_of[fd] = link
        self._registered[link.worker] = wanted

    def _unregister(self, worker: int) -> None:
        self._forget(worker, self._registered.pop(worker))

    def _forget(self, worker: int, before: Iterable[int]) -> None:
        """Not those that were closed, and that another worker's link has been given since."""
        for fd in before:
            owner = self._link_of.get(fd)
            if owner is not None and owner.worker == worker:
                del self._link_of[fd]
                self._poll.unregister(fd)

    def close(self) -> None:
        """May come while another thread waits: it is woken."""
        self.wake()
        self._wakeup.close()
        self._links, self._link_of = {}, {}


class ReaderThread:
    """A thread that waits on its links and hands every event on, until it is closed.

    An exception on the way, whatever it is, ends the thread and goes to `fail`.

    A daemon, so that an interpreter that ends without `close` is not held up before its exit
    functions run; one of these closes and joins it.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[Link, Sequence[Event]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.waiter = Waiter()
        self._handle = handle
        self._fail = fail
        self._open = True
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while self._open:
                for link, events in self.waiter.wait():
                    for event in events:  # one by one: none need wait for the next one's decoding
                        self._handle(link, (event,))
        except BaseException as error:  # noqa: BLE001 - the training loop gets it
            self._fail(error)

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
