"""The pipeline of one consumer: numbers down to the workers, batches up to the training loop.

Role: the training process. Ties the pure books (`dispatch`, `delivery`, `schedule`, `supervision`)
to the links that carry messages. Events are handled by whoever reads them: the training thread
while it waits, or reader threads (see `swift_loader.pipeline.reader`). The books are under one
lock, held for microseconds and never over I/O; what has to be sent or started is collected under it
and done after it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Literal, NoReturn, TypeVar

from swift_loader.errors import ClosedError, WorkerError
from swift_loader.order.order import Order
from swift_loader.order.part import EpochPart, Number
from swift_loader.pipeline.crew import Crew, Threads
from swift_loader.pipeline.delivery import Delivery
from swift_loader.pipeline.dispatch import Dispatch
from swift_loader.pipeline.item import Decoder, Item
from swift_loader.pipeline.link import (
    Crashed,
    Event,
    Gone,
    Link,
    MadeBatch,
    NoMore,
    NotMade,
    Refused,
    Running,
    Up,
)
from swift_loader.pipeline.numbers import Numbers
from swift_loader.pipeline.reader import Waiter
from swift_loader.pipeline.supervision import Supervisor, describe_number
from swift_loader.plan import Plan
from swift_loader.telemetry.metrics import Meter
from swift_loader.transport.messages import ErrorReport
from swift_loader.worker.faults import revive

__all__ = ["Pipeline", "PipelineOptions"]

T = TypeVar("T")
_NOTHING_LEFT = Number(-1, -1, -1), Item(-1)
# The training thread reads when nothing is ready; and else so often, as workers that have answered
# are not given more before that is read.
_LOOK_S = 0.001
_START_GRACE_S = 60.0  # for a dataset to be built again, when a worker is replaced


@dataclass(frozen=True)
class PipelineOptions:
    """The options that matter from here on; see the loader for what they mean."""

    data_queue_size: int
    queue_grows: bool
    message_queue_size: int
    max_buffer_size: int
    in_order: bool
    timeout_s: float | None
    on_timeout: Literal["raise", "restart"]
    max_worker_restarts: int
    max_bad_samples: int | None
    threads: Threads
    decoder: Decoder | None = None
    auto_workers: bool = False


class _Todo:
    """What is to be done once the lock is released: `do` it, in the order it was thought of."""

    __slots__ = ("_flush", "_later")

    def __init__(self) -> None:
        self._flush: dict[int, Link] = {}
        self._later: list[Callable[[], object]] = []

    def flush(self, link: Link) -> None:
        self._flush[link.worker] = link

    def later(self, action: Callable[..., object], *arguments: Any) -> None:
        self._later.append(partial(action, *arguments) if arguments else action)

    def do(self) -> None:
        for link in self._flush.values():
            link.flush()
        for action in self._later:
            action()


class Pipeline:
    """See the module's text. One training thread calls; `close` may come from any."""

    def __init__(
        self,
        options: PipelineOptions,
        launchers: Mapping[int, Callable[[int], Link]],
        meter: Meter,
        logger: Any,
        awaited: Collection[int] = (),
    ) -> None:
        self._options = options
        self._meter = meter
        self._logger = logger
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._dispatch = Dispatch(
            options.data_queue_size, options.message_queue_size, grows=options.queue_grows
        )
        self._delivery: Delivery[Item] = Delivery(options.in_order)
        self._supervisor = Supervisor(options.max_worker_restarts, options.max_bad_samples)
        self._numbers: Numbers | None = None
        self._plans: dict[int, Plan] = {}
        self._order: Order | None = None
        self._halted: BaseException | None = None  # what ended the pipeline, until it is raised
        self._halted_by = ""
        self._closed = False
        self._look_at_s = 0.0
        self._ended = False  # no batch will come any more: `_raise_why` says why
        self._pid = os.getpid()
        _pipelines.add(self)
        self._early: Counter[int] = Counter()  # by worker
        self.nb_samples: int | None = None
        self.dataset_name = ""
        self._crew = Crew(launchers, awaited, options.threads, options.auto_workers, self._handle)

    # ---- the training thread

    def start(self) -> None:
        """Start all workers and wait until the first one takes orders.

        Of those that are `awaited` (far away, where more can be wrong) each must take orders or be
        given up. Raises what the dataset's constructor raised, or `WorkerDiedError`.
        """
        for worker in self._crew.first():
            self._launch(worker)
        self._wait_for(lambda: self._crew.ready or None, None)

    def set_plan(self, plan_id: int, plan: Plan) -> None:
        """Tell all workers, now and when they are replaced, what `plan_id` means."""
        todo = _Todo()
        with self._lock:
            self._plans[plan_id] = plan
            for worker in self._crew.up:
                self._crew.links[worker].set_plan(plan_id, plan)
                todo.flush(self._crew.links[worker])
        todo.do()

    def _numbers_from(self, part: EpochPart, order: Order) -> Numbers:
        self._order = order
        delivery = self._delivery
        return Numbers(part, order, delivery.skip, delivery.ends)

    def prefetch(self, part: EpochPart, order: Order) -> None:
        """Begin to make the batches of `part`, which the training loop will `begin` later."""
        todo = _Todo()
        with self._lock:
            self._check_open()
            self._numbers = self._numbers_from(part, order)
            for item in self._delivery.keep_only(set()):
                self._drop(item, todo)
            self._delivery.pause()
            self._forget_all_but(set(), todo)
            self._send_orders(todo)
            self._arrived.notify_all()
        todo.do()

    def begin(self, part: EpochPart, order: Order) -> None:
        """Deliver `part` from now on; after it, prefetch what `order` has follow.

        What was prefetched of it is kept, everything else is dropped.
        """
        todo = _Todo()
        with self._lock:
            self._check_open()
            self._supervisor.epoch_begins()
            if self._numbers is None or not self._numbers.begin(part):
                self._numbers = self._numbers_from(part, order)
                self._numbers.begin(part)
                keep: set[Number] = set()
            else:
                parts = [part, *self._numbers.ahead()]
                known = self._dispatch.outstanding() | self._delivery.ready()
                keep = {number for number in known if any(number in p for p in parts)}
            dropped = self._delivery.keep_only(keep) + self._delivery.begin(part)
            for item in dropped:
                self._drop(item, todo)
            self._forget_all_but(keep, todo)
            self._send_orders(todo)
            self._arrived.notify_all()
        todo.do()

    def _forget_all_but(self, keep: set[Number], todo: _Todo) -> None:
        assert self._numbers is not None
        nb_shards = 0 if self._order is None else self._order.nb_shards
        for worker, tickets in self._dispatch.restart(self._numbers, keep, nb_shards).items():
            self._crew.links[worker].forget(tickets)
            todo.flush(self._crew.links[worker])

    def next(self, part: EpochPart) -> tuple[Number, Item] | None:
        """The next batch of `part`, or None at its end, or when it is not delivered any more.

        The second because a thread that takes ahead of the training loop may still be in here when
        the loop begins another part: it gets no batch of that one, and what it holds of its own is
        dropped. Parts are told apart by identity, as an epoch may be begun twice.

        Raises the error that stands in a batch's place (the batch is made again if the loop goes
        on), `WorkerTimeoutError`, or what ended the pipeline.
        """
        if self._crew.waiter is not None and time.monotonic() > self._look_at_s:
            self._read(self._crew.waiter, 0.0)
        found = self._wait_for(lambda: self._take(part), self._options.timeout_s)
        if found is _NOTHING_LEFT:
            return None
        number, item = found
        item.decode(self._options.decoder)
        todo = _Todo()
        with self._lock:
            if self._delivery.part is not part:
                return None
            if item.fault is None:
                self._delivery.taken(number)
                self._dispatch.consumed()
                if self._numbers is not None:
                    self._numbers.consumed(number)
            else:
                self._dispatch.give_back(number)
            self._send_orders(todo)
        todo.do()
        if item.fault is not None:
            raise item.fault
        return found

    def _take(self, part: EpochPart) -> tuple[Number, Item] | None:
        """The next batch, `_NOTHING_LEFT`, or None when it is not there yet."""
        delivery = self._delivery
        if delivery.part is not part:
            return _NOTHING_LEFT
        found = delivery.take()
        if found is None:
            return None if delivery.left else _NOTHING_LEFT
        if found[1].early:
            self._early[found[1].worker] -= 1
        return found

    @property
    def left(self) -> int:
        """Batches of this epoch that were not taken yet."""
        return self._delivery.left

    @property
    def depth(self) -> int:
        """Batches that are ready."""
        return len(self._delivery)

    @property
    def next_is_ready(self) -> bool:
        """Whether `next` has a batch, or the end, at once."""
        with self._lock:
            return self._delivery.has_next() or not self._delivery.left

    def _wait_for(self, get: Callable[[], T | None], timeout_s: float | None) -> T:
        """Wait for the workers' messages until `get`, called under the lock, gives something.

        Raises what ended the pipeline.
        """
        limit_s = inf if timeout_s is None else timeout_s
        deadline_s: float | None = None
        while True:
            with self._lock:
                if self._ended:
                    self._raise_why()
                got = get()
                if got is not None:
                    return got
                now_s = time.monotonic()
                deadline_s = deadline_s or now_s + limit_s
                left_s = deadline_s - now_s
                wait_s = None if left_s == inf else left_s
                if left_s > 0 and self._crew.waiter is None:
                    self._arrived.wait(wait_s)
                    continue
            if left_s <= 0:
                self._timed_out(limit_s)
                deadline_s = None
            elif self._crew.waiter is not None:
                self._read(self._crew.waiter, wait_s)

    def _read(self, waiter: Waiter, wait_s: float | None) -> None:
        """Read for ourselves, there being no reader threads."""
        for link, events in waiter.wait(wait_s):
            self._handle(link, events)
        self._look_at_s = time.monotonic() + _LOOK_S

    # ---- events, by whoever reads them

    def _handle(self, link: Link, events: list[Event]) -> None:
        todo = _Todo()
        items = {e.ticket: self._item(link, e) for e in events if type(e) is MadeBatch}
        with self._lock:
            if self._crew.links.get(link.worker) is not link:
                return
            for event in events:
                if type(event) is MadeBatch:
                    self._on_made(link, event, items[event.ticket], todo)
                else:
                    self._on_event(link, event, todo)
            if self._crew.scaling is not None:
                self._see_off(link, todo)
            self._send_orders(todo)
            self._arrived.notify_all()
        todo.do()

    def _item(self, link: Link, made: MadeBatch) -> Item:
        """With reader threads, the batch is decoded here as long as few such ones wait."""
        item = Item(link.worker, made=made)
        if self._crew.readers and self._early[link.worker] < self._options.max_buffer_size:
            item.decode(self._options.decoder)
            item.early = True
        return item

    def _on_made(self, link: Link, made: MadeBatch, item: Item, todo: _Todo) -> None:
        times = made.times
        busy_s = times.fetch_s + times.collate_s + times.encode_s
        number = self._dispatch.answered(link.worker, made.ticket, busy_s, made.parcel.nbytes)
        self._early[link.worker] += item.early
        if self._crew.scaling is not None:
            self._crew.scaling.made(busy_s)
        if number is None:
            self._drop(item, todo)
            return
        self._delivery.put(number, item)
        if made.bad:
            self._on_bad_samples(made, todo)

    def _on_event(self, link: Link, event: Event, todo: _Todo) -> None:
        worker = link.worker
        match event:
            case NotMade(ticket=ticket, fault=fault):
                number = self._dispatch.answered(worker, ticket)
                if number is not None and fault is None:
                    self._dispatch.give_back(number)
                elif number is not None and fault is not None:
                    self._on_fault(link, number, fault)
            case NoMore(ticket=ticket):
                number = self._dispatch.answered(worker, ticket)
                if number is not None and self._numbers is not None:
                    self._numbers.shard_over(number)
                    self._numbers.consumed(number)
                    self._delivery.skip(number)
                    self._dispatch.consumed()
            case Running(pid=pid):
                todo.later(self._meter.worker_started, worker, pid)
            case Up():
                self._on_up(link, event, todo)
            case Refused(fault=fault):
                self._halt(revive(fault, link.name))
                self._dispatch.remove_worker(worker)
            case Crashed():
                self._on_crashed(link, event, todo)
            case Gone():
                self._on_gone(link, event, todo)

    def _on_up(self, link: Link, up: Up, todo: _Todo) -> None:
        if self.nb_samples is None:
            self.nb_samples, self.dataset_name = up.nb_samples, up.dataset_name
        elif up.nb_samples != self.nb_samples:
            self._halt(
                WorkerError(
                    f"the dataset of {link.name} has {up.nb_samples} samples, that of the workers "
                    f"before it {self.nb_samples}: it must have the same length in all workers"
                )
            )
            return
        self._crew.up.add(link.worker)
        for plan_id, plan in self._plans.items():
            link.set_plan(plan_id, plan)
        todo.flush(link)
        self._dispatch.add_worker(link.worker, up.capacity, up.round_trip_s)

    def _on_gone(self, link: Link, gone: Gone, todo: _Todo) -> None:
        worker = link.worker
        self._crew.up.discard(worker)
        todo.later(self._meter.worker_stopped, worker)
        orders = self._dispatch.remove_worker(worker, gone.suspects)
        todo.later(self._reap, link)
        if self._closed:
            return
        if gone.replace == "never":
            self._crew.given_up[worker] = gone.story
            story = f"{gone.story}; it is given up, its batches are made by others"
            todo.later(self._logger.warning, "{}", story)
            if self._crew.exhausted:
                self._halt(self._supervisor.none_left(self._crew.given_up.values()))
            return
        if gone.replace == "counted":
            number = next((o.number for o in orders if o.ticket == gone.ticket), None)
            error = self._supervisor.died(gone, number, self._samples(number))
            if error is not None:
                self._halt(error)
                return
        self._tell_restart(
            worker, f"{gone.story}; it is replaced, its batches are made again", todo
        )
        todo.later(self._launch, worker)

    def _tell_restart(self, worker: int, story: str, todo: _Todo) -> None:
        todo.later(self._meter.worker_restarted, worker, None, story)
        todo.later(self._logger.warning, "{}", story)

    def _on_crashed(self, link: Link, crashed: Crashed, todo: _Todo) -> None:
        number = None
        if crashed.ticket is not None:
            number = self._dispatch.answered(link.worker, crashed.ticket)
        error = self._supervisor.died(crashed, number, self._samples(number))
        if error is not None:
            self._halt(error)
            return
        self._tell_restart(
            link.worker, f"{crashed.story}; it is replaced, its batch is made again", todo
        )
        if number is not None:
            self._dispatch.give_back(number)

    def _on_fault(self, link: Link, number: Number, fault: ErrorReport) -> None:
        error = revive(fault, f"{link.name}, {describe_number(number)}")
        self._delivery.put(number, Item(link.worker, fault=error))

    def _on_bad_samples(self, made: MadeBatch, todo: _Todo) -> None:
        todo.later(self._tell_bad_samples, made)
        error = self._supervisor.bad_samples(len(made.bad))
        if error is not None:
            self._halt(error)

    def _tell_bad_samples(self, made: MadeBatch) -> None:
        for sample in made.bad:
            what = "replaced" if sample.replaced else "skipped"
            count = self._meter.replaced if sample.replaced else self._meter.skipped
            count(sample.index, sample.error)
            self._logger.warning("sample {} was {}: {}", sample.index, what, sample.error)

    def _samples(self, number: Number | None) -> list[Any]:
        if number is None or self._order is None or self._numbers is None:
            return []
        return self._order.samples(number, self._numbers.details(number))

    def _send_orders(self, todo: _Todo) -> None:
        if self._halted_by:
            return
        try:
            orders = self._dispatch.orders()
        except Exception as error:  # noqa: BLE001 - a sampler of the user's; the loop gets it
            self._halt(error)
            return
        for order in orders:
            link = self._crew.links[order.worker]
            details = b"" if self._numbers is None else self._numbers.details(order.number)
            link.make(order.ticket, order.number, details)
            todo.flush(link)

    def _drop(self, item: Item, todo: _Todo) -> None:
        """`item` was ready and is not wanted."""
        self._early[item.worker] -= item.early
        if item.made is not None and not item.decoded:
            todo.later(item.made.parcel.discard)

    def _reap(self, link: Link) -> None:
        link.wait_closed(time.monotonic())

    # ---- more or fewer workers

    def loop_waited(self, waited_s: float, now_s: float) -> None:
        """The training loop waited so long for its batch: with ``auto``, reason for a change."""
        crew = self._crew
        if crew.scaling is None:
            return
        local = crew.local()
        step = crew.scaling.delivered(waited_s, now_s, len(local))
        if not step:
            return
        if step > 0:
            worker = crew.spare()
            why = f"one worker more, {len(local) + 1} now: the training loop waited for data"
            self._launch(worker)
        else:
            worker = max(local)
            why = f"one worker less, {len(local) - 1} now: the others are not busy"
            todo = _Todo()
            with self._lock:
                self._dispatch.retire(worker)
                self._see_off(self._crew.links[worker], todo)
            todo.do()
        self._logger.info("{}", why)
        self._meter.event("workers", worker=worker, step=step, text=why)

    def _see_off(self, link: Link, todo: _Todo) -> None:
        """End a worker that was retired, once it owes nothing."""
        if not self._dispatch.is_done(link.worker):
            return
        self._dispatch.remove_worker(link.worker)
        self._crew.up.discard(link.worker)
        del self._crew.links[link.worker]
        todo.later(self._crew.let_go, link)
        todo.later(self._meter.worker_stopped, link.worker)

    def _launch(self, worker: int) -> None:
        error = self._crew.launch(worker)
        if error is not None:
            with self._lock:
                self._halt(error)

    # ---- when nothing comes

    def _timed_out(self, timeout_s: float) -> None:
        """Say where the workers are; or replace those that hold things up."""
        with self._lock:
            wanted = self._delivery.wanted()
            busy = self._dispatch.holders(wanted)
            links = [self._crew.links[worker] for worker in busy or self._crew.links]
        stories = [f"{link.name}: {link.stack()}" for link in links]
        error = self._supervisor.timed_out(timeout_s, wanted, stories)
        if self._options.on_timeout == "raise":
            raise error
        if not busy:  # its worker is being replaced, and was not to be had yet
            if time.monotonic() - self._crew.launched_at_s > max(timeout_s, _START_GRACE_S):
                raise error
            return
        self._logger.warning("{}", error)
        for link, story in zip(links, stories, strict=True):
            link.kill(f"did not answer within timeout={timeout_s:g} s and was ended; {story}")

    # ---- the end

    def _halt(self, error: BaseException) -> None:
        """Nothing can go on: whoever waits for a batch gets `error`."""
        if not self._halted_by:
            self._ended = True
            self._halted = error
            self._halted_by = f"{type(error).__name__}: {error}"
        self._arrived.notify_all()

    def _check_open(self) -> None:
        if self._ended:
            self._raise_why()

    def _raise_why(self) -> NoReturn:
        if self._halted is not None:
            # Raised once, then forgotten: its traceback holds the frames of the training loop.
            error, self._halted = self._halted, None
            raise error
        if self._closed:
            raise ClosedError("the loader is closed; build a new one to go on")
        if self._halted_by:
            raise ClosedError(f"the loader has ended with an error before: {self._halted_by}")
        raise ClosedError(
            "this process was forked from the one that started the loader; "
            "build and start a loader of its own here"
        )

    def in_own_thread(self) -> bool:
        """Whether it is a reader that calls."""
        return self._crew.in_own_thread()

    def close(self) -> None:
        """End all workers and threads. Batches that the user holds stay valid."""
        with self._lock:
            if self._closed:
                return
            self._closed = self._ended = True
            self._arrived.notify_all()
        if self._pid == os.getpid():  # a forked child owns none of it
            self._crew.close()


_pipelines: weakref.WeakSet[Pipeline] = weakref.WeakSet()


def _end_in_forked_child() -> None:
    for pipeline in list(_pipelines):
        pipeline._ended = True


os.register_at_fork(after_in_child=_end_in_forked_child)
