"""Workers and a training loop without processes, to try the books with.

Each step is what a worker or the loop may do next; after each the books' promises are checked:
exactly once, in order, bounded by credits, nothing leaked. `drain` checks that an epoch ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from swift_loader.order.part import UNKNOWN, EpochPart, Number
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
from swift_loader.pipeline.books import Books, End
from swift_loader.pipeline.item import Item
from swift_loader.pipeline.link import Crashed, Gone, MadeBatch, NoMore, NotMade, Running, Up
from swift_loader.pipeline.numbers import AFTER, NumberState
from swift_loader.pipeline.options import PipelineOptions
from swift_loader.pipeline.roster import WorkerState
from swift_loader.transport.messages import ErrorReport, StageTimes

FAULT = ErrorReport(None, "ValueError", "broken", "", "fetching")


def options(**given: Any) -> PipelineOptions:
    defaults: dict[str, Any] = {
        "data_queue_size": 6,
        "queue_grows": False,
        "message_queue_size": 10,
        "max_buffer_size": 2,
        "in_order": True,
        "timeout_s": None,
        "on_timeout": "restart",
        "max_worker_restarts": 10**9,
        "max_deaths_per_batch": 2,
        "max_bad_samples": None,
    }
    return PipelineOptions(**{**defaults, **given})


@dataclass(frozen=True)
class Epochs:
    """An order: `count` batches an epoch, or shards of `lengths`; like every `Order`."""

    count: int
    lengths: tuple[int, ...] = ()  # of shards
    known_ahead: bool = True
    length_known: bool = True

    @property
    def nb_shards(self) -> int:
        return len(self.lengths)

    def part(self, epoch: int) -> EpochPart:
        known = self.length_known and not self.lengths
        return EpochPart(0, epoch, self.count if known else UNKNOWN)

    def wanted(self, part: EpochPart) -> list[Number]:
        """What the training loop must get of `part`."""
        last = self.nb_shards * max(self.lengths) if self.lengths else self.count
        numbers = EpochPart(part.plan_id, part.epoch, last, part.first, part.done).numbers()
        return [number for number in numbers if not self.is_over(number)]

    def is_over(self, number: Number) -> bool:
        nb = self.nb_shards
        return bool(nb) and number.k // nb >= self.lengths[number.k % nb]

    def batches(self, part: EpochPart) -> Iterator[tuple[Number, bytes]]:
        for number in part.numbers():
            if not self.nb_shards and number.k >= self.count:
                return
            yield number, b"" if self.known_ahead else b"details of %d" % number.k

    def samples(self, number: Number, details: bytes) -> list[Any]:
        return [number.k]

    plans = capture = resumed = None  # the books don't ask


@dataclass(eq=False)
class Parcel:
    nbytes: int = 1 << 20
    fate: str = ""

    def open(self) -> Any:
        raise AssertionError("the books open nothing")

    def discard(self) -> None:
        raise AssertionError("actions do that")


@dataclass(eq=False)
class FakeWorker:
    """What a worker knows: its orders, in the order they came."""

    up: bool = False
    capacity: int = 1
    orders: dict[int, Number] = field(default_factory=dict)
    recalled: set[int] = field(default_factory=set)


class World:
    def __init__(
        self,
        order: Epochs,
        nb_workers: int,
        settings: PipelineOptions,
        random: Random,
        nb_elsewhere: int = 0,
    ) -> None:
        self.order = order
        self.random = random
        self.in_order = settings.in_order
        self.most = settings.message_queue_size
        elsewhere = range(nb_workers, nb_workers + nb_elsewhere)
        self.elsewhere = set(elsewhere)
        self.books = Books(settings, range(nb_workers + nb_elsewhere), elsewhere)
        self.links: dict[int, FakeWorker] = {}
        self.halted: BaseException | None = None
        self.parcels: list[Parcel] = []
        self.deaths: Counter[Number] = Counter()
        self.part = EpochPart(0, 0, 0)
        self.wanted: list[Number] = []  # of the part, and not delivered
        self.now_s = 0.0
        self.nb_steps = 0
        self.before: dict[Number, NumberState] = {}
        self.do(self.books.start(0.0))

    # ---- actions

    def do(self, actions: list[Action], *, begins: bool = False) -> None:
        for action in actions:
            match action:
                case Send(worker=worker, ticket=ticket, number=number, details=details):
                    link = self.links[worker]
                    assert link.up
                    assert self.books.roster[worker] is WorkerState.UP
                    assert ticket not in link.orders
                    nb = self.order.nb_shards
                    assert not nb or number.k % nb == worker, "a shard belongs to its worker"
                    wants_details = not self.order.known_ahead
                    assert details == (b"details of %d" % number.k if wants_details else b"")
                    link.orders[ticket] = number
                case Recall(worker=worker, tickets=tickets):
                    self.links[worker].recalled |= set(tickets)
                case Launch(worker=worker):
                    assert worker not in self.links, "one process a worker"
                    nb = self.order.nb_shards
                    self.links[worker] = FakeWorker(capacity=1 if nb else self.capacity(worker))
                case Reap(worker=worker):
                    del self.links[worker]
                case Dismiss(worker=worker):
                    assert not self.links.pop(worker).orders, "it is not let go while it owes"
                case Kill(worker=worker):
                    self.links[worker].up = self.links[worker].up  # `die` follows
                case Drop(item=item):
                    if item.made is not None:
                        self.settle(item.made.parcel, "dropped")
                case Halt(error=error):
                    self.halted = error
                case Teach() | Tell():
                    pass
        self.check(begins=begins)

    def capacity(self, worker: int) -> int:
        return 3 if worker in self.elsewhere else 1

    def settle(self, parcel: Any, fate: str) -> None:
        assert not parcel.fate, f"{fate} after it was {parcel.fate}"
        parcel.fate = fate
        self.parcels.remove(parcel)

    def check(self, *, begins: bool) -> None:
        self.nb_steps += 1
        where = self.books.where()
        used, credits = self.books.credits
        if self.halted is None:
            assert used == len(where), "credits in use: what waits, is being made or is ready"
        assert used <= credits
        if not begins:
            for number, state in self.before.items():
                after = where.get(number, NumberState.DONE)
                assert after is state or after in _NEXT[state], f"{number}: {state} to {after}"
        self.before = where
        nb_ready = sum(state is NumberState.READY for state in where.values())
        assert nb_ready == self.books.depth
        for worker, link in self.links.items():
            nb_wanted = len(link.orders.keys() - link.recalled)
            on_the_way = 128 if worker in self.elsewhere else 0
            most = self.most or (10 if worker in self.elsewhere else 64)
            most = (most + on_the_way) * link.capacity
            assert nb_wanted <= most, f"worker {worker} holds {nb_wanted}"

    def say(self, worker: int, *events: Any) -> None:
        self.now_s += 1e-4
        self.do(self.books.handle(worker, f"worker {worker}", events, self.now_s))

    # ---- what workers may do

    def workers(self, *, up: bool) -> list[int]:
        return sorted(worker for worker, link in self.links.items() if link.up is up)

    def with_orders(self) -> list[int]:
        return sorted(worker for worker, link in self.links.items() if link.orders)

    def comes_up(self, worker: int) -> None:
        link = self.links[worker]
        link.up = True
        trip_s = 0.01 if worker in self.elsewhere else 0.0
        self.say(worker, Running(1), Up(None, "numbers", link.capacity, trip_s))

    def made(self, worker: int, ticket: int) -> Item:
        parcel = Parcel()
        self.parcels.append(parcel)
        times = StageTimes(self.random.choice([1e-5, 1e-3]), 0.0, 0.0)
        item = Item(worker, made=MadeBatch(ticket, 1, times, parcel))
        if self.random.random() < 0.3 and self.books.may_decode(worker):
            item.decoded = item.early = True
        return item

    def answers(self, worker: int, *, fails: bool = False, twice: bool = False) -> None:
        link = self.links[worker]
        ticket = next(iter(link.orders))
        if link.capacity > 1:  # several workers stand behind it
            ticket = self.random.choice(list(link.orders))
        number = link.orders.pop(ticket)
        if ticket in link.recalled and self.random.random() < 0.5:
            self.say(worker, NotMade(ticket, None))
        elif self.order.is_over(number):
            self.say(worker, NoMore(ticket))
        elif fails:
            self.say(worker, NotMade(ticket, FAULT))
        else:
            answers = [self.made(worker, ticket)]
            if twice:
                answers.append(self.made(worker, ticket))
            self.say(worker, *answers)

    def answers_all(self, worker: int) -> None:
        """In one message."""
        link = self.links[worker]
        events: list[Any] = []
        for ticket, number in link.orders.items():
            over = self.order.is_over(number)
            events.append(NoMore(ticket) if over else self.made(worker, ticket))
        link.orders.clear()
        self.say(worker, *events)

    def dies(self, worker: int) -> None:
        link = self.links[worker]
        ticket = next(iter(link.orders), None)
        # No number goes so far here that it would end the run.
        deaths = 0 if ticket is None else self.deaths[link.orders[ticket]]
        if deaths > 1:
            ticket = None
        suspects: frozenset[int] = frozenset()
        if ticket is not None and len(link.orders) > 1 and self.random.random() < 0.3:
            suspects, ticket = frozenset(link.orders), None
        if ticket is not None:
            self.deaths[link.orders[ticket]] += 1
        counted = self.random.random() < 0.7
        replace: Literal["counted", "uncounted"] = "counted" if counted else "uncounted"
        outside = deaths == 1 or self.random.random() < 0.5
        gone = Gone("gone", ticket, replace=replace, suspects=suspects, outside=outside)
        self.say(worker, gone)

    def one_behind_dies(self, worker: int) -> None:
        link = self.links[worker]
        ticket = self.random.choice(list(link.orders))
        if self.deaths[link.orders[ticket]]:
            return
        self.deaths[link.orders.pop(ticket)] += 1
        self.say(worker, Crashed("crashed", ticket))

    def is_given_up(self, worker: int) -> None:
        self.say(worker, Gone("gone", None, replace="never"))

    def times_out(self) -> None:
        stories = dict.fromkeys(self.links, "hangs")
        actions = self.books.timed_out(1.0, self.now_s, stories)
        self.do(actions)
        for action in actions:
            if isinstance(action, Kill):
                self.dies(action.worker)

    # ---- what the training loop may do

    def begins(self, part: EpochPart) -> None:
        before, self.part = self.part, part
        self.wanted = self.order.wanted(part)
        self.do(self.books.begin(part, self.order), begins=True)
        if before is not part:
            assert self.books.take(before) is End.OF_PART, "the part before gets nothing of this"

    def prefetches(self, part: EpochPart) -> None:
        self.part = EpochPart(0, part.epoch, 0)
        self.wanted = []
        self.do(self.books.prefetch(part, self.order), begins=True)

    def takes(self) -> bool:
        """Whether there was a batch."""
        found = self.books.take(self.part)
        if found is None:
            return False
        if isinstance(found, End):
            assert not self.wanted, f"ended before {self.wanted[0]}"
            return False
        number, item = found
        if self.in_order:
            assert self.wanted, f"{number} is one too many"
            assert number == self.wanted[0]
        self.wanted.remove(number)
        if item.made is not None:
            self.settle(item.made.parcel, "delivered")
        self.do(self.books.credit())
        return True

    def waits(self, waited_s: float) -> None:
        self.now_s += 0.3
        self.do(self.books.waited(waited_s, self.now_s))

    @property
    def has_ended(self) -> bool:
        return isinstance(self.books.take(self.part), End) if not self.wanted else False

    def drain(self) -> None:
        """Everybody works: the part ends, with everything that it must have."""
        for _ in range(10_000):
            for worker in self.workers(up=False):
                self.comes_up(worker)
            while self.takes():
                pass
            if self.has_ended:
                return
            at_work = self.with_orders()
            assert at_work, f"nothing is being made, and {self.wanted[:3]} have not come"
            self.answers(self.random.choice(at_work))
        raise AssertionError("the epoch does not end")

    def check_nothing_is_left(self) -> None:
        """All batches that were made were taken or dropped, once."""
        nothing = EpochPart(0, 10**6, 0)
        self.do(self.books.prefetch(nothing, Epochs(0, known_ahead=False)), begins=True)
        for worker in list(self.links):
            while self.links[worker].orders:
                self.answers(worker)
        assert not self.parcels
        assert not self.books.where()
        assert all(self.books.may_decode(worker) for worker in self.links)

    # ---- a life by chance

    def step(self) -> None:
        """Anything that may happen next."""
        random = self.random
        chance = random.random()
        starting, at_work = self.workers(up=False), self.with_orders()
        if starting and chance < 0.2:
            self.comes_up(random.choice(starting))
        elif at_work and chance < 0.55:
            fails, twice = random.random() < 0.03, random.random() < 0.03
            self.answers(random.choice(at_work), fails=fails, twice=twice)
        elif at_work and chance < 0.6:
            self.answers_all(random.choice(at_work))
        elif self.links and chance < 0.62:
            self.dies(random.choice(sorted(self.links)))
        elif chance < 0.625:
            self.times_out()
        elif chance < 0.63:
            self.waits(random.choice([0.0, 0.0, 0.2]))
        elif chance < 0.64 and self.elsewhere & set(at_work):
            self.one_behind_dies(random.choice(sorted(self.elsewhere & set(at_work))))
        elif chance < 0.641 and self.elsewhere & self.links.keys() and len(self.links) > 1:
            gone = random.choice(sorted(self.elsewhere & self.links.keys()))
            self.is_given_up(gone)
            self.elsewhere.discard(gone)
        elif chance < 0.65:
            self.turns_to_something_else()
        elif not self.takes() and self.has_ended:
            self.begins(self.order.part(self.part.epoch + 1))

    def turns_to_something_else(self) -> None:
        """The loop leaves the epoch, goes back, or loads a state."""
        random = self.random
        epoch = max(0, self.part.epoch + random.choice([-1, 0, 1, 1, 2]))
        part = self.order.part(epoch)
        if random.random() < 0.4:
            first = random.randrange(self.order.count + 1)
            ahead = range(first + 1, self.order.count)
            done = frozenset(k for k in ahead if random.random() < 0.2)
            part = EpochPart(0, epoch, part.count, first, done)
        if random.random() < 0.3:
            self.prefetches(part)
        if random.random() < 0.9:
            self.begins(part)


def _without_beginning() -> dict[NumberState, set[NumberState]]:
    """What may become of a number in one step, unless the training loop begins something."""
    after = {state: next_ - {NumberState.NEW} for state, next_ in AFTER.items()}
    after[NumberState.GIVEN] |= {NumberState.GIVEN}  # its worker died, another has it
    return after


_NEXT = _without_beginning()
