"""The books of one consumer: which number is where, and what is to be done. Pure.

Events come in, actions go out. Nothing here locks, waits, sends, starts or looks at a clock; who
calls (`swift_loader.pipeline.shell`) brings the time as an argument and carries the actions out, in
their order. The parts: `numbers` (what is to be made), `dispatch` and `load` (by whom), `delivery`
(what is ready), `roster` and `scaling` (who works), `supervision` (who is replaced).

The states of a worker stand in `roster`, those of a number in `numbers`. Credits bound what is
`WAITING`, `GIVEN` or `READY`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from swift_loader.errors import WorkerError
from swift_loader.order.order import Order
from swift_loader.order.part import EpochPart, Number, ShardsOver
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
from swift_loader.pipeline.delivery import NOTHING, Delivery
from swift_loader.pipeline.dispatch import Dispatch
from swift_loader.pipeline.item import Item
from swift_loader.pipeline.lacking import Lacking
from swift_loader.pipeline.link import (
    Crashed,
    Event,
    Gone,
    NoMore,
    NotMade,
    Refused,
    Running,
    Up,
)
from swift_loader.pipeline.numbers import Numbers, NumberState
from swift_loader.pipeline.options import PipelineOptions
from swift_loader.pipeline.roster import Roster, WorkerState
from swift_loader.pipeline.supervision import Supervisor, Verdict, describe_number
from swift_loader.plan import Plan
from swift_loader.worker.faults import describe_indices, revive

__all__ = ["Books", "End"]

_W = WorkerState
_N = NumberState
_START_GRACE_S = 60.0  # for a dataset to be built again, when a worker is replaced


class End(Enum):
    """In the place of a batch: the part has no more, or is not delivered any more."""

    OF_PART = 0


class Books:
    """See the module's text.

    `workers`: those that may be launched; `awaited`: those of them that are elsewhere, where more
    can be wrong.
    """

    def __init__(
        self, options: PipelineOptions, workers: Collection[int], awaited: Collection[int] = ()
    ) -> None:
        self._options = options
        self.roster = Roster(workers, awaited, auto=options.auto_workers)
        self._dispatch = Dispatch(
            options.data_queue_size,
            options.message_queue_size,
            grows=options.queue_grows,
            in_order=options.in_order,
        )
        self._delivery: Delivery[Item] = Delivery(options.in_order)
        self._supervisor = Supervisor(
            options.max_worker_restarts, options.max_deaths_per_batch, options.max_bad_samples
        )
        self._numbers: Numbers | None = None
        self._plans: dict[int, Plan] = {}
        self._early: Counter[int] = Counter()  # ready ones that a reader has decoded, by worker
        self._lacking = Lacking()
        self._over = False
        #: how a stream stands at the end of its shards, by epoch and worker
        self.shard_ends: dict[int, dict[int, bytes]] = {}
        self.nb_samples: int | None = None  # as the first worker says; None: not known, or a stream
        self.lengths: tuple[int, ...] = ()  # of its sources

    # ---- workers come and go

    def start(self, now_s: float) -> list[Action]:
        """Launch those to begin with."""
        return [self._launch(worker, now_s) for worker in self.roster.first()]

    @property
    def ready(self) -> bool:
        """Whether one takes orders, and each of those elsewhere does, or was given up."""
        return self.roster.ready

    def _launch(self, worker: int, now_s: float) -> Launch:
        self.roster.starts(worker, now_s)
        return Launch(worker)

    def not_launched(self, worker: int, why: str, now_s: float) -> list[Action]:
        """There was no room to start it: later, unless it was tried for long enough."""
        actions: list[Action] = []
        if not self._over:
            self.roster.starts(worker, now_s)
            self._halt(self._lacking.launch(worker, why, now_s, actions), actions)
        return actions

    # ---- what workers say

    def handle(
        self, worker: int, name: str, events: Sequence[Event | Item], now_s: float
    ) -> list[Action]:
        """Take what `worker`, called `name`, has sent; batches come as items, decoded or not."""
        actions: list[Action] = []
        for event in events:
            if type(event) is Item:
                self._on_made(worker, event, actions)
            else:
                self._on_event(worker, name, event, now_s, actions)
        if self.roster.scaling is not None:
            self._dismiss(worker, actions)
        self._assign(actions)
        return actions

    def _on_made(self, worker: int, item: Item, actions: list[Action]) -> None:
        made = item.made
        assert made is not None
        times = made.times
        busy_s = times.fetch_s + times.collate_s + times.encode_s
        number = self._dispatch.answered(worker, made.ticket, busy_s, made.parcel.nbytes)
        self._lacking.over()
        if self.roster.scaling is not None:
            self.roster.scaling.made(busy_s)
        if item.early:
            self._early[worker] += 1
        if number is None:
            self._drop(item, actions)
            return
        self._delivery.put(number, item)
        if made.bad:
            actions.append(Tell("bad", worker, bad=made.bad))
            self._halt(self._supervisor.bad_samples(len(made.bad)), actions)

    def _on_event(
        self, worker: int, name: str, event: Event | Item, now_s: float, actions: list[Action]
    ) -> None:
        match event:
            case NotMade(ticket=ticket, fault=fault):
                number = self._dispatch.answered(worker, ticket)
                if number is not None and fault is None:
                    self._dispatch.give_back(number)
                elif number is not None:
                    where = f"{name}, {describe_number(number)}"
                    self._delivery.put(number, Item(worker, report=fault, where=where))
            case NoMore(ticket=ticket):
                number = self._dispatch.answered(worker, ticket)
                if number is not None and self._numbers is not None:
                    if event.state:
                        self.shard_ends.setdefault(number.epoch, {})[worker] = event.state
                    self._numbers.shard_over(number)
                    self._dispatch.consumed()
                    for over in (number, *self._dispatch.shard_over(number)):
                        self._numbers.consumed(over)
                        self._delivery.skip(over)
            case Running(pid=pid):
                actions.append(Tell("started", worker, pid=pid))
            case Up():
                self._on_up(worker, name, event, actions)
            case Refused(fault=fault):
                self.roster.become(worker, _W.OFF)
                self._halt(revive(fault, name), actions)
            case Crashed():
                self._on_crashed(worker, event, actions)
            case Gone():
                self._on_gone(worker, event, now_s, actions)
            case _:
                raise TypeError(f"a link does not say {type(event).__name__}")

    def _on_up(self, worker: int, name: str, up: Up, actions: list[Action]) -> None:
        if self.nb_samples is None:
            self.nb_samples, self.lengths = up.nb_samples, up.lengths
        elif up.nb_samples != self.nb_samples:
            error = WorkerError(
                f"the dataset of {name} has {up.nb_samples} samples, that of the workers "
                f"before it {self.nb_samples}: it must have the same length in all workers"
            )
            self._halt(error, actions)
            return
        self.roster.become(worker, _W.UP)
        actions += [Teach(worker, plan_id, plan) for plan_id, plan in self._plans.items()]
        elsewhere = self.roster.is_elsewhere(worker)
        self._dispatch.add_worker(worker, up.capacity, up.round_trip_s, elsewhere=elsewhere)

    def _on_gone(self, worker: int, gone: Gone, now_s: float, actions: list[Action]) -> None:
        was = self.roster[worker]
        held = self._dispatch.remove_worker(worker)
        for ticket in gone.suspects & held.keys():
            self._dispatch.suspect(held[ticket])
        actions += [Tell("stopped", worker), Reap(worker)]
        if gone.replace == "never":
            self.roster.gives_up(worker, gone.story)
            story = f"{gone.story}; it is given up, its batches are made by others"
            actions.append(Tell("given up", worker, story))
            if self.roster.exhausted:
                error = self._supervisor.none_left(self.roster.why_given_up.values())
                self._halt(error, actions)
            return
        if gone.replace == "later" and was is not _W.LEAVING:
            actions += self.not_launched(worker, gone.story, now_s)
            return
        if gone.replace == "counted":
            number = None if gone.ticket is None else held.get(gone.ticket)
            verdict = self._supervisor.died(gone, number, self._contents(number))
            if isinstance(verdict, Exception):
                self._halt(verdict, actions)
            elif number is not None and verdict is Verdict.ALONE:
                self._dispatch.suspect(number)
        if was is _W.LEAVING or self._over:
            self.roster.become(worker, _W.OFF)
            return
        story = f"{gone.story}; it is replaced, its batches are made again"
        actions += [Tell("restarted", worker, story), self._launch(worker, now_s)]

    def _on_crashed(self, worker: int, crashed: Crashed, actions: list[Action]) -> None:
        number = None
        if crashed.ticket is not None:
            number = self._dispatch.answered(worker, crashed.ticket)
        verdict = self._supervisor.died(crashed, number, self._contents(number))
        if isinstance(verdict, Exception):
            self._halt(verdict, actions)
            return
        story = f"{crashed.story}; it is replaced, its batch is made again"
        actions.append(Tell("restarted", worker, story))
        if number is not None:
            self._dispatch.give_back(number)

    def _contents(self, number: Number | None) -> str:
        """``of samples [3, 7]``, or where in a stream it is."""
        if number is None or self._numbers is None:
            return ""
        order = self._numbers.order
        if order.nb_shards:
            before, worker = divmod(number.k, order.nb_shards)
            return f"from the shard of worker {worker}, after {before} batches of that"
        samples = order.samples(number, self._numbers.details(number))
        return f"of {describe_indices(samples)}" if samples else ""

    # ---- what the training loop does

    def set_plan(self, plan_id: int, plan: Plan) -> list[Action]:
        """All workers learn, now and when they are replaced, what `plan_id` means."""
        self._plans[plan_id] = plan
        return [Teach(worker, plan_id, plan) for worker in self.roster.taught()]

    def prefetch(self, part: EpochPart, order: Order) -> list[Action]:
        """Begin to make the batches of `part`, which the training loop will `begin` later."""
        self._numbers = Numbers(part, order)
        self._delivery.forget()
        return self._go_on_with(NOTHING, set(), self._numbers)

    def begin(self, part: EpochPart, order: Order) -> list[Action]:
        """Deliver `part` from now on; after it, make what `order` has follow, as far as is known.

        What was prefetched of it is kept, everything else is dropped.
        """
        self._supervisor.epoch_begins()
        numbers = self._numbers
        keep: set[Number] = set()
        if numbers is not None and numbers.begin(part):
            parts = [part, *numbers.ahead()]
            known = self._dispatch.waiting().union(*self._dispatch.given().values())
            known |= self._delivery.ready() | self._dispatch.parked()
            keep = {number for number in known if any(number in p for p in parts)}
        else:
            numbers = self._numbers = Numbers(part, order)
            numbers.begin(part)
            self._delivery.forget()
        return self._go_on_with(part, keep, numbers)

    def _go_on_with(self, part: EpochPart, keep: set[Number], numbers: Numbers) -> list[Action]:
        actions: list[Action] = []
        for item in self._delivery.begin(part, keep):
            self._drop(item, actions)
        stale = self._dispatch.restart(numbers, keep, numbers.order.nb_shards)
        actions += [Recall(worker, tickets) for worker, tickets in stale.items()]
        self._assign(actions)
        return actions

    def take(self, part: EpochPart) -> tuple[Number, Item] | End | None:
        """The next batch of `part`; its end; or None when it is not there yet.

        It has ended, too, when it is not delivered any more: a thread that takes ahead of the
        training loop may still ask when the loop begins another part. Parts are told apart by
        identity, as an epoch may be begun twice. After a batch comes `credit`.
        """
        delivery = self._delivery
        if delivery.part is not part:
            return End.OF_PART
        found = delivery.take()
        if found is None:
            return None if delivery.left else End.OF_PART
        number, item = found
        if item.early:
            self._early[item.worker] -= 1
        self._dispatch.consumed()
        if self._numbers is not None:
            self._numbers.consumed(number)
        return found

    def credit(self) -> list[Action]:
        """What can be made now that the training loop has taken a batch."""
        actions: list[Action] = []
        self._assign(actions)
        return actions

    def shards_over(self, epoch: int) -> ShardsOver | None:
        """The shards of a stream that have ended in this epoch; None where there are none."""
        return self._numbers.shards_over(epoch) if self._numbers is not None else None

    @property
    def depth(self) -> int:
        """Batches that are ready."""
        return len(self._delivery)

    @property
    def next_is_ready(self) -> bool:
        """Whether `take` has a batch, or the end, at once."""
        return self._delivery.has_next() or not self._delivery.left

    def may_decode(self, worker: int) -> bool:
        """Whether a reader may decode another batch of the worker's ahead of the loop."""
        return self._early[worker] < self._options.max_buffer_size

    # ---- numbers to workers

    def _assign(self, actions: list[Action]) -> None:
        numbers = self._numbers
        if self._over or numbers is None:
            return
        try:
            given = self._dispatch.assign()
        except Exception as error:  # noqa: BLE001 - a sampler of the user's; the loop gets it
            self._halt(error, actions)
            return
        for worker, ticket, number in given:  # few; most often none
            actions.append(Send(worker, ticket, number, numbers.details(number)))
        if numbers.passed_over or numbers.ends:
            for number in numbers.passed_over:
                self._delivery.skip(number)
            for part, count in numbers.ends:
                self._delivery.ends(part, count)
            numbers.passed_over.clear()
            numbers.ends.clear()

    def _drop(self, item: Item, actions: list[Action]) -> None:
        self._early[item.worker] -= item.early
        actions.append(Drop(item))

    # ---- more or fewer workers

    def waited(self, waited_s: float, now_s: float) -> list[Action]:
        """The training loop waited so long for its batch: with ``auto``, reason for a change."""
        change = self.roster.change(waited_s, now_s)
        if change is None:
            return []
        worker, why = change
        if self.roster[worker] is _W.OFF:
            return [self._launch(worker, now_s), Tell("more", worker, why)]
        actions: list[Action] = [Tell("fewer", worker, why)]
        self.roster.become(worker, _W.LEAVING)
        self._dispatch.retire(worker)
        self._dismiss(worker, actions)
        return actions

    def _dismiss(self, worker: int, actions: list[Action]) -> None:
        if self.roster[worker] is _W.LEAVING and self._dispatch.is_done(worker):
            self._dispatch.remove_worker(worker)
            self.roster.become(worker, _W.OFF)
            actions += [Dismiss(worker), Tell("stopped", worker)]

    # ---- when nothing comes

    def busy(self) -> list[int]:
        """The workers that hold the training loop up."""
        return self._dispatch.holders(self._delivery.wanted())

    def timed_out(self, timeout_s: float, now_s: float, stories: Mapping[int, str]) -> list[Action]:
        """Nothing came for `timeout_s`; `stories` say where workers are. Raises what is due."""
        if self._delivery.has_next():  # it has come since
            return []
        busy = self.busy()
        wanted = self._delivery.wanted()
        error = self._supervisor.timed_out(timeout_s, wanted, list(stories.values()))
        if self._options.on_timeout == "raise":
            raise error
        if not busy:  # its worker is being replaced, and was not to be had yet
            if now_s - self.roster.launched_at_s > max(timeout_s, _START_GRACE_S):
                raise error
            return []
        actions: list[Action] = [Tell("slow", busy[0], str(error))]
        for worker in busy:
            if worker in stories:
                why = f"did not answer within timeout={timeout_s:g} s and was ended"
                actions.append(Kill(worker, f"{why}; {stories[worker]}"))
        return actions

    # ---- the end

    def _halt(self, error: BaseException | None, actions: list[Action]) -> None:
        if error is not None and not self._over:
            self._over = True
            actions.append(Halt(error))

    def close(self) -> None:
        """Nothing is made or delivered any more; what is ready is forgotten."""
        self._over = True
        self._delivery.begin(NOTHING, set())

    # ---- for whoever looks

    def where(self) -> dict[Number, NumberState]:
        """All numbers that are neither `NEW` nor `DONE`."""
        given: set[Number] = set().union(*self._dispatch.given().values())
        return {
            **dict.fromkeys(self._dispatch.waiting(), _N.WAITING),
            **dict.fromkeys(given, _N.GIVEN),
            **dict.fromkeys(self._delivery.ready(), _N.READY),
        }

    @property
    def credits(self) -> tuple[int, int]:
        """Those in use, and all."""
        return self._dispatch.unconsumed, self._dispatch.credits
