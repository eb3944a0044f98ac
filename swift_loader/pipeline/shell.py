"""The pipeline of one consumer: numbers down to the workers, batches up to the training loop.

Role: the training process. It decides nothing: `swift_loader.pipeline.books` does. This holds what
the books can't have: one lock over them and over the links, held for microseconds and never over
I/O; and the threads that wait. What workers send is handled by whoever reads it: training threads
in `swift_loader.pipeline.turns`, or reader threads (see `swift_loader.pipeline.reader`). What the
books want done then, `swift_loader.pipeline.hands` does.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Any, Literal, NoReturn

from swift_loader.errors import ClosedError, LoaderError, NoRoomError
from swift_loader.order.order import Order
from swift_loader.order.part import EpochPart, Number, ShardsOver
from swift_loader.pipeline import slow_start
from swift_loader.pipeline.actions import Action
from swift_loader.pipeline.books import Books, End
from swift_loader.pipeline.hands import Hands, Later
from swift_loader.pipeline.item import Decoder, Item
from swift_loader.pipeline.lacking import is_lack
from swift_loader.pipeline.link import Event, Link, MadeBatch
from swift_loader.pipeline.options import PipelineOptions
from swift_loader.pipeline.reader import ReaderThread, Waiter
from swift_loader.pipeline.turns import Turns
from swift_loader.plan import Plan
from swift_loader.telemetry.metrics import Meter

__all__ = ["Pipeline", "Threads"]

Threads = Literal["none", "one", "per worker"]  # that read what workers send

_CLOSE_GRACE_S = 1.0


class Pipeline:
    """See the module's text. Training threads call; `close` may come from any.

    `launchers`: how each worker is started, by its number. `awaited`: those that are elsewhere.
    """

    def __init__(
        self,
        options: PipelineOptions,
        launchers: Mapping[int, Callable[[int], Link]],
        meter: Meter,
        logger: Any,
        *,
        awaited: Collection[int] = (),
        threads: Threads = "none",
        decoder: Decoder | None = None,
    ) -> None:
        self._timeout_s = options.timeout_s
        self._decoder = decoder
        self._scales = options.auto_workers
        self._lock = threading.Lock()  # over the books, the links and what follows
        self._arrived = threading.Condition(self._lock)
        self._waiter: Waiter | None = None
        self._readers: list[ReaderThread] = []
        if threads == "none":
            self._waiter = Waiter()
        else:
            count = 1 if threads == "one" else max(1, len(launchers))
            names = [f"swift_loader-reader-{i}" for i in range(count)]
            self._readers = [ReaderThread(name, self._handle, self._fail) for name in names]
        waiters = [self._waiter] if self._waiter else [reader.waiter for reader in self._readers]
        self._turns = Turns(self._arrived, self._waiter)
        self._books = Books(options, launchers.keys(), awaited)
        self._hands = Hands(launchers, waiters, self._lock, meter, logger, self._no_room)
        self._halted: BaseException | None = None  # what ended the pipeline, until it is raised
        self._halted_by = ""
        self._closed = False
        self._ended = False  # no batch will come any more: `_raise_why` says why
        self._pid = os.getpid()
        _pipelines.add(self)

    # ---- the training thread

    def start(self) -> None:
        """Start all workers and wait until the first one takes orders.

        Of those that are `awaited` (far away, where more can be wrong) each must take orders or be
        given up. Raises what the dataset's constructor raised, or `WorkerDiedError`.
        """
        self._do(lambda: self._books.start(time.monotonic()))
        self._wait_for(lambda: self._books.ready, slow_start.WARNS_AFTER_S, self._say_it_is_slow)

    @property
    def nb_samples(self) -> int | None:
        """The data set's length, as its workers say; None: a stream."""
        return self._books.nb_samples

    @property
    def lengths(self) -> tuple[int, ...]:
        """Those of the sources of a mixture, as its workers say."""
        return self._books.lengths

    def set_plan(self, plan_id: int, plan: Plan) -> None:
        """Tell all workers, now and when they are replaced, what `plan_id` means."""
        self._do(lambda: self._books.set_plan(plan_id, plan))

    def prefetch(self, part: EpochPart, order: Order) -> None:
        """Begin to make the batches of `part`, which the training loop will `begin` later."""
        self._do(lambda: self._books.prefetch(part, order), only_open=True)

    def begin(self, part: EpochPart, order: Order) -> None:
        """Deliver `part` from now on; after it, prefetch what `order` has follow.

        What was prefetched of it is kept, everything else is dropped.
        """
        self._do(lambda: self._books.begin(part, order), only_open=True)

    def next(self, part: EpochPart) -> tuple[Number, Item] | None:
        """The next batch of `part`, decoded, or None at its end; see `Books.take`.

        Where a batch could not be made or decoded, its item has a `fault`, to be raised in its
        place. Raises `WorkerTimeoutError`, or what ended the pipeline.
        """
        self._turns.look(self._handle)
        if self._hands.launches.next_s < inf:
            self._launch_due()
        later: Later = []
        found: tuple[Number, Item] | End | None = None

        def take() -> bool:
            nonlocal found
            found = self._books.take(part)
            if type(found) is tuple:
                actions = self._books.credit()
                if actions:
                    self._queue(actions, later)
            return found is not None

        self._wait_for(take, self._timeout_s)
        if later:
            self._carry_out(later)
        if found is None or isinstance(found, End):
            return None
        found[1].decode(self._decoder)
        return found

    def shard_ends(self, epoch: int) -> dict[int, bytes]:
        """By worker: how a stream stands at the end of its shard, if it can tell."""
        with self._lock:
            ends = self._books.shard_ends
            for old in [one for one in ends if one < epoch]:
                del ends[old]
            return ends.get(epoch, {})

    def shards_over(self, epoch: int) -> ShardsOver | None:
        """The shards of a stream that have ended in this epoch; None where there are none."""
        with self._lock:
            return self._books.shards_over(epoch)

    @property
    def depth(self) -> int:
        """Batches that are ready."""
        return self._books.depth

    @property
    def next_is_ready(self) -> bool:
        """Whether `next` has a batch, or the end, at once."""
        with self._lock:
            return self._books.next_is_ready

    def loop_waited(self, waited_s: float, now_s: float) -> None:
        """The training loop waited so long for its batch."""
        if self._scales:
            self._do(lambda: self._books.waited(waited_s, now_s))

    def _wait_for(
        self,
        get: Callable[[], bool],
        timeout_s: float | None,
        late: Callable[[float], None] | None = None,
    ) -> None:
        """Wait for the workers' messages until `get`, called under the lock, has what it wants.

        Calls `late` (or `_time_out`) each time that it takes `timeout_s`. Raises what ended the
        pipeline.
        """
        limit_s = inf if timeout_s is None else timeout_s
        deadline_s: float | None = None
        while True:
            with self._lock:
                if self._ended:
                    self._raise_why()
                if get():
                    return
                now_s = time.monotonic()
                deadline_s = deadline_s or now_s + limit_s
                left_s = deadline_s - now_s
                wait_s = min(left_s, self._hands.launches.next_s - now_s)
                if wait_s > 0 and not self._turns.may_read(wait_s):
                    continue
            if wait_s > 0:
                self._turns.read(wait_s, self._handle)
            elif left_s > 0:
                self._launch_due()
            else:
                (late or self._time_out)(limit_s)
                deadline_s = None

    # ---- events, by whoever reads them

    def _handle(self, link: Link, events: Sequence[Event]) -> None:
        worker = link.worker
        taken = [self._item(worker, e) if type(e) is MadeBatch else e for e in events]
        later: Later = []
        with self._lock:
            if self._hands.links.get(worker) is not link:
                return  # another one has taken its place, or all is over
            actions = self._books.handle(worker, link.name, taken, time.monotonic())
            self._queue(actions, later)
            self._arrived.notify_all()
        self._carry_out(later)

    def _item(self, worker: int, made: MadeBatch) -> Item:
        """With reader threads, the batch is decoded here as long as few such ones wait."""
        item = Item(worker, made=made)
        if self._readers and self._books.may_decode(worker):
            item.decode(self._decoder)
            item.early = True
        return item

    # ---- carrying out actions

    def _do(self, act: Callable[[], list[Action]], *, only_open: bool = False) -> None:
        later: Later = []
        with self._lock:
            if only_open and self._ended:
                self._raise_why()
            self._queue(act(), later)
            self._arrived.notify_all()
        self._carry_out(later)

    def _queue(self, actions: list[Action], later: Later) -> None:
        """Under the lock."""
        end = self._hands.queue(actions, later)
        if end is not None:
            self._end_with(end)

    def _carry_out(self, later: Later) -> None:
        for act in later:
            try:
                act()
            except Exception as error:  # noqa: BLE001 - the training loop gets it
                self._fail(error)

    def _no_room(self, worker: int, why: str) -> None:
        self._do(lambda: self._books.not_launched(worker, why, time.monotonic()))

    def _launch_due(self) -> None:
        with self._lock:
            due = self._hands.launch_due()
        self._carry_out(due)

    # ---- when nothing comes

    def _time_out(self, timeout_s: float) -> None:
        """Say where the workers are; or replace those that hold things up."""
        stories = self._stories()
        self._do(lambda: self._books.timed_out(timeout_s, time.monotonic(), stories))

    def _say_it_is_slow(self, timeout_s: float) -> None:
        slow_start.warn_of_slow_start(self._stories().values())

    def _stories(self) -> dict[int, str]:
        """Where each worker is that owes something; where none does, each one."""
        with self._lock:
            busy = self._books.busy()
            of = self._hands.links
            links = [of[worker] for worker in busy or of if worker in of]
        return {link.worker: f"{link.name}: {link.stack()}" for link in links}

    # ---- the end

    def _fail(self, error: BaseException) -> None:
        if is_lack(error) and not isinstance(error, LoaderError):
            told = NoRoomError(f"this process has no room for what it must do: {error}")
            told.__cause__, error = error, told
        with self._lock:
            self._end_with(error)

    def _end_with(self, error: BaseException) -> None:
        """Under the lock. Nothing can go on: whoever waits for a batch gets `error`."""
        if not self._halted_by:
            self._ended = True
            self._halted = error
            self._halted_by = f"{type(error).__name__}: {error}"
        self._arrived.notify_all()

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
        """Whether it is a reader that calls: it may be anywhere in the books then."""
        return any(reader.is_current for reader in self._readers)

    def close(self) -> None:
        """End all workers and threads. Batches that the user holds stay valid.

        Memory and descriptors of what nobody holds are given back, also while this is referenced.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = self._ended = True
            self._arrived.notify_all()
        if self._pid != os.getpid():  # a forked child owns none of it
            return
        for reader in self._readers:
            reader.close()
        if self._waiter is not None:
            self._waiter.close()
        with self._lock:
            links = self._hands.let_go()
            self._books.close()
        for link in links:
            link.close()
        deadline_s = time.monotonic() + _CLOSE_GRACE_S
        for link in links:
            link.wait_closed(deadline_s)


_pipelines: weakref.WeakSet[Pipeline] = weakref.WeakSet()


def _end_in_forked_child() -> None:
    for pipeline in list(_pipelines):
        pipeline._ended = True


os.register_at_fork(after_in_child=_end_in_forked_child)
