"""One session of an endpoint: a training process's dataset, its workers and its orders.

Role: part of the endpoint. Says to the training process: `Up`, `Refused`, `MadeFrame`, `NotMade`,
`Crashed`, `Stacks`, `Here`. Drives its workers by the same links as a training process does.

An order waits here until a worker has room for it, so that what one worker sits on can be made by
another, and until the network has taken what was made before: a training process that does not
read makes nothing grow.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

from swift_loader.pipeline.link import (
    Crashed,
    Event,
    Gone,
    MadeBatch,
    NotMade,
    Refused,
    Running,
    Up,
)
from swift_loader.pipeline.load import Load, least_loaded
from swift_loader.pipeline.local import LocalLink
from swift_loader.plan import Plan
from swift_loader.remote.messages import (
    AskHere,
    AskStacks,
    Chunk,
    FrameError,
    FullError,
    Hello,
    Here,
    MadeFrame,
    MakeFrame,
    Message,
    Stacks,
)
from swift_loader.remote.payloads import HeldPayload, Payloads
from swift_loader.transport.messages import Forget, SetPlan
from swift_loader.worker.place import Place

__all__ = ["Session", "Worker"]

_MOST_ORDERS = 1 << 16  # a training process has as many as its credits, some tens
_MOST_PLANS = 1 << 10
_FULL_FOR_S = 0.9  # less than the endpoint's loop takes to ask again
_NONE_FOR_S = 3.0  # without a worker that could be started: the training process is told
_MOST_CRASHES = 100  # without a batch between them
_NEEDY_FOR_S = 5.0  # a session that was busy so recently keeps its share: epochs have gaps
_DEEPEST = 32

Fork = Callable[[int, Place, int], LocalLink]


@dataclass(slots=True, eq=False, kw_only=True)
class Worker(Load[MakeFrame]):
    """A worker of this session, by the smallest number that is free.

    One that is `leaving` gets no orders and ends when it has none.
    """

    link: LocalLink
    up: bool = False
    leaving: bool = False


class Session:
    """See the module's text. `say` sends, `fork` starts a worker, `wake` stirs the loop."""

    def __init__(
        self,
        number: int,
        hello: Hello,
        payloads: Payloads,
        capacity: int,
        fork: Fork,
        say: Callable[[Message], None],
        wake: Callable[[], None],
    ) -> None:
        self.number = number
        self.hello = hello
        self.workers: list[Worker] = []
        self.state: Literal["arriving", "starting", "up", "over"] = "arriving"
        self.dataset_name = ""
        self.wanting = ""  # why it has fewer workers than it should
        self._full_until_s = 0.0
        self._none_since_s: float | None = None  # no worker could be started
        self.nb_made = 0
        self.nb_bytes = 0
        self._capacity = capacity
        self._fork = fork
        self._say = say
        self._wake = wake
        self._payloads = payloads
        self._payload: HeldPayload | None = payloads.open(hello.payload_bytes, hello.payload_sha256)
        if self._payload.complete:
            self.state = "starting"
        self._place = Place(hello.consumer_index, hello.nb_consumer, capacity, hello.seed, None)
        self._nb_samples: int | None = None
        self._nb_forked = 0
        self._crashes = 0
        self._busy_at_s = time.monotonic()
        self._plans: dict[int, Plan] = {}
        self._waiting: deque[MakeFrame] = deque()
        self._tickets: set[int] = set()  # unanswered
        self._sending: dict[int, weakref.ref[Any]] = {}  # memory that the network still reads
        self._sent: deque[weakref.ref[Any]] = deque()
        self._stalled = False

    # ---- what the training process says

    def take(self, message: Message) -> None:
        """Raises `FrameError` when it is not for a session, or not for this one now."""
        match message:
            case MakeFrame():
                self._order(message)
            case Forget(tickets=tickets):
                self._forget(tickets)
            case SetPlan(plan_id=plan_id, plan=plan):
                if len(self._plans) >= _MOST_PLANS:
                    raise FrameError("too many plans")
                self._plans[plan_id] = plan
                for worker in self.workers:
                    if worker.up:
                        worker.link.set_plan(plan_id, plan)
                        worker.link.flush()
            case Chunk():
                if self._payload is None or self._payload.complete:
                    raise FrameError("a chunk of a dataset that is complete")
                if self._payload.add(message):
                    self._payload = self._payloads.share(self._payload)
                    self.state = "starting"
            case AskStacks():
                self._say(Stacks(self._stacks()))
            case AskHere():
                self._say(Here())
            case _:
                raise FrameError(f"a {type(message).__name__}, which is not for a session")

    def _order(self, order: MakeFrame) -> None:
        if self.state != "up" or order.number.plan_id not in self._plans:
            raise FrameError("an order before its plan")
        if order.ticket in self._tickets or len(self._tickets) >= _MOST_ORDERS:
            raise FrameError("an order too many")
        self._tickets.add(order.ticket)
        self._waiting.append(order)

    def _forget(self, tickets: frozenset[int]) -> None:
        keep: deque[MakeFrame] = deque()
        for order in self._waiting:
            if order.ticket in tickets:
                self._answer(NotMade(order.ticket, None))
            else:
                keep.append(order)
        self._waiting = keep
        for worker in self.workers:
            held = tickets & worker.held.keys()
            if held:
                worker.link.forget(held)
                worker.link.flush()

    def _stacks(self) -> str:
        told = [
            f"{w.link.name} there{'' if w.up else ', which is being started'}: {w.link.stack()}"
            for w in self.workers
            if w.held or not w.up
        ]
        if self._waiting:
            told.append(f"{len(self._waiting)} orders wait for a worker")
        return "\n\n".join(told) or f"none of its {len(self.workers)} workers has an order"

    # ---- how many workers

    @property
    def needy(self) -> bool:
        """It has work, or had some just now."""
        if self._tickets or self.state == "starting":
            self._busy_at_s = time.monotonic()
        return time.monotonic() < self._busy_at_s + _NEEDY_FOR_S

    def resize(self, share: int) -> list[LocalLink]:
        """Have `share` workers. Returns the links of those that are let go of."""
        if self.state not in ("starting", "up"):
            return []
        for worker in self.workers[:share]:
            worker.leaving = False
        for worker in self.workers[share:]:
            worker.leaving = True
        self.wanting = ""
        while len(self.workers) < share and time.monotonic() >= self._full_until_s:
            try:
                self._start_worker()
            except OSError as error:  # no descriptors, memory or processes, for now
                self.wanting = f"a worker can't be started, which is tried again: {error}"
                break
        gone = [worker for worker in self.workers if worker.leaving and not worker.held]
        for worker in gone:
            self.workers.remove(worker)
        return [worker.link for worker in gone]

    def _start_worker(self) -> None:
        assert self._payload is not None
        number = self.hello.first_worker + self._nb_forked * self.hello.worker_step
        self._nb_forked += 1
        taken = {worker.worker for worker in self.workers}
        free = next(i for i in count() if i not in taken)
        place = replace(self._place, worker_id=free)
        link = self._fork(number, place, self._payload.fd)
        self.workers.append(Worker(free, _DEEPEST, link=link))

    # ---- what the workers say

    def receive(self, worker: Worker) -> None:
        """Take what `worker` has sent."""
        for event in worker.link.receive():
            self._on_event(worker, event)

    def _on_event(self, worker: Worker, event: Event) -> None:
        match event:
            case MadeBatch():
                self._on_made(worker, event)
            case NotMade(ticket=ticket):
                del worker.held[ticket]
                self._answer(event)
            case Up():
                self._on_up(worker, event)
            case Refused():
                self.state = "over"
                self._say(event)
            case Gone():
                self._on_gone(worker, event)
            case Running() | Crashed():
                pass

    def _on_made(self, worker: Worker, made: MadeBatch) -> None:
        del worker.held[made.ticket]
        times = made.times
        worker.made(times.fetch_s + times.collate_s + times.encode_s)
        self._crashes = 0
        skeleton, base = made.parcel.open()
        memory = weakref.ref(base, self._on_sent)
        self._sending[id(memory)] = memory
        self.nb_made += 1
        self.nb_bytes += base.nbytes
        self._answer(MadeFrame(made.ticket, made.nb_samples, times, skeleton, made.bad, base.data))

    def _on_sent(self, memory: weakref.ref[Any]) -> None:
        """Runs wherever the last reference to a sent batch goes; so it does next to nothing."""
        self._sent.append(memory)
        if self._stalled:
            self._stalled = False  # once is enough
            self._wake()

    def _answer(self, message: MadeFrame | NotMade | Crashed) -> None:
        if message.ticket is not None:
            self._tickets.discard(message.ticket)
        self._say(message)

    def _on_up(self, worker: Worker, up: Up) -> None:
        worker.up = True
        self._none_since_s = None
        for plan_id, plan in self._plans.items():
            worker.link.set_plan(plan_id, plan)
        worker.link.flush()
        if self.state == "starting":
            self.state = "up"
            self._nb_samples, self.dataset_name = up.nb_samples, up.dataset_name
            self._say(Up(up.nb_samples, up.dataset_name, self._capacity, 0.0, up.lengths))
        elif up.nb_samples != self._nb_samples:
            raise FrameError(
                f"its dataset has {up.nb_samples} samples in one worker and {self._nb_samples} in "
                "another"
            )

    def _on_gone(self, worker: Worker, gone: Gone) -> None:
        self.workers.remove(worker)
        worker.link.wait_closed(time.monotonic())
        # One that is up has run, though nobody may have told of it: whatever it was forked from can
        # be killed in between.
        if worker.link.pid is None and not worker.up:  # there are no processes left, for now
            now_s = time.monotonic()
            self._full_until_s = now_s + _FULL_FOR_S
            if self._none_since_s is None:
                self._none_since_s = now_s
            if now_s > self._none_since_s + _NONE_FOR_S and not any(w.up for w in self.workers):
                raise FullError(
                    "no worker can be started on the endpoint's machine, for want of processes or "
                    f"memory (its log tells more): {gone.story}"
                )
            return
        at = worker.held.pop(gone.ticket, None) if gone.ticket is not None else None
        self._waiting.extendleft(reversed(worker.held.values()))
        self._answer(Crashed(gone.story, at.ticket if at else None, gone.sample))
        self._crashes += 1
        if self._crashes > _MOST_CRASHES:
            raise FrameError(f"{self._crashes} workers died and made nothing; {gone.story}")

    # ---- orders to workers

    def dispatch(self) -> None:
        """Give out what waits, as far as workers and the network have room."""
        if not self._waiting:
            return
        self._stalled = True  # before looking, so that no wake-up falls between
        while self._sent:
            del self._sending[id(self._sent.popleft())]
        if len(self._sending) > 4 + 2 * len(self.workers):
            return
        self._stalled = False
        told: set[Worker] = set()
        while self._waiting:
            worker = least_loaded(w for w in self.workers if w.up and not w.leaving)
            if worker is None:
                break
            order = self._waiting.popleft()
            worker.held[order.ticket] = order
            worker.link.make(order.ticket, order.number, order.indices)
            told.add(worker)
        for worker in told:
            worker.link.flush()

    # ---- the end

    def close(self) -> list[LocalLink]:
        """Free everything; returns the links that are let go of."""
        self.state = "over"
        if self._payload is not None:
            self._payloads.release(self._payload)
            self._payload = None
        links = [worker.link for worker in self.workers]
        self.workers.clear()
        self._waiting.clear()
        return links

    def facts(self) -> dict[str, Any]:
        """For `swift-loader status`."""
        return {
            "session": self.number,
            "consumer": self.hello.consumer_index,
            "nb_consumer": self.hello.nb_consumer,
            "dataset": self.dataset_name,
            "state": self.state,
            "workers": len(self.workers),
            "orders_waiting": len(self._waiting),
            "orders_with_workers": sum(len(worker.held) for worker in self.workers),
            "batches": self.nb_made,
            "bytes": self.nb_bytes,
        }
