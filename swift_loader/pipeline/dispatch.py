"""Which worker makes which batch number. Pure: no I/O, no clock, no threads.

Numbers are given out in order, lowest first, as long as there are credits: at most
`data_queue_size` batches are made and not yet consumed. Where it `grows`, there are at least twice
as many as there turn out to be workers, and more over a long line. Small batches have up to
`_LONG_QUEUE` credits, as long as they fit into `_QUEUE_BYTES`: ten of them are made in less time
than a process is kept from its core by another one. Where batches are made so fast that a worker
holds many, there are twice as many credits as workers hold, up to `_LONGEST_QUEUE`.
A worker that dies gives its numbers back,
and they are the first to be given out again; so the order of delivery never depends on who made
what. How many a worker may hold is `swift_loader.pipeline.load`'s.

With shards, a number can be made by one worker only: it is parked until that worker has room, and
does not hold up those of others. In order, a parked number holds a credit, as everything after it
waits for it. Out of order nothing waits for it, so it holds none: a slow shard does not stop the
others before `_MOST_PARKED` of its numbers lie there.

A suspect is a number at which a worker died, or may have died. It is made alone, by a worker that
holds nothing else, so that the next death is beyond doubt.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from swift_loader.order.part import Number
from swift_loader.pipeline.load import Load, least_loaded

__all__ = ["Assignment", "Dispatch"]

_QUEUE_BYTES = 64 << 20
_LONG_QUEUE = 40
_LONGEST_QUEUE = 160
_MOST_HERE = 64  # orders that wait at a worker, where the user says nothing
_MOST_ELSEWHERE = 10  # each may cost a message of its own
_MOST_PARKED = 1 << 16


class Assignment(NamedTuple):
    """Worker `worker` is to make `number`, and to answer with `ticket`."""

    worker: int
    ticket: int
    number: Number


class Dispatch:
    """Which numbers wait, and which are with a worker. See the module's text."""

    def __init__(
        self,
        data_queue_size: int,
        message_queue_size: int | None = None,
        *,
        grows: bool = False,
        in_order: bool = True,
    ) -> None:
        self.credits = data_queue_size
        self._grows = grows
        self._in_order = in_order
        self._most = message_queue_size
        self._worth_sending = max(1, data_queue_size // 2)
        self._loads: dict[int, Load[Number]] = {}  # by worker
        self._tickets = count(1)
        self._stale: set[int] = set()  # tickets that are out, and that nobody wants any more
        self._waiting: list[Number] = []  # heap of numbers that were given back
        self._source: Iterator[Number] = iter(())
        self._nb_shards = 0
        self._parked: dict[int, list[Number]] = {}  # heaps, by worker
        self._drawn_epoch = -1
        self._dry: dict[int, int] = {}  # by worker, the epoch in which its shard has ended
        self._suspects: set[Number] = set()
        self.unconsumed = 0  # given out (or given back), wanted, and not consumed

    # ---- workers

    def add_worker(
        self, worker: int, capacity: int = 1, round_trip_s: float = 0.0, *, elsewhere: bool = False
    ) -> None:
        """A worker that takes orders from now on."""
        most = self._most or (_MOST_ELSEWHERE if elsewhere else _MOST_HERE)
        self._loads[worker] = Load(worker, most, capacity, round_trip_s)
        self._grow_for_workers()

    def remove_worker(self, worker: int) -> dict[int, Number]:
        """The worker is gone; its wanted numbers wait to be given out again.

        Returns them by ticket, lowest ticket first.
        """
        gone = self._loads.pop(worker, None)
        if gone is None:
            return {}
        wanted = {t: number for t, number in sorted(gone.held.items()) if t not in self._stale}
        self._stale -= gone.held.keys()
        for number in wanted.values():
            heapq.heappush(self._waiting, number)
        return wanted

    def suspect(self, number: Number) -> None:
        """A worker may have died of it."""
        self._suspects.add(number)

    def retire(self, worker: int) -> None:
        """The worker gets no more orders; `is_done` when it has answered those it has."""
        load = self._loads.get(worker)
        if load is not None:
            load.close()

    def is_done(self, worker: int) -> bool:
        """Whether a worker owes no answer."""
        load = self._loads.get(worker)
        return load is None or not load.held

    # ---- numbers

    def restart(
        self, source: Iterator[Number], keep: set[Number], nb_shards: int = 0
    ) -> dict[int, list[int]]:
        """Give out the numbers of `source` from now on.

        Any worker may make any; or, with shards, ``worker k % nb_shards`` must make batch ``k``. Of
        those given out before, `keep` are still wanted and the rest are not. Returns the tickets
        that became stale, by worker, so that workers can be told.
        """
        if source is not self._source:
            self._drawn_epoch = -1
            self._dry.clear()
        self._source = source
        self._nb_shards = nb_shards
        parked = [number for heap in self._parked.values() for number in heap if number in keep]
        self._parked.clear()
        self._suspects &= keep
        self._waiting = [number for number in self._waiting if number in keep]
        if self._in_order:
            self._waiting += parked
        else:
            for number in parked:
                self._park(number)
        heapq.heapify(self._waiting)
        stale: dict[int, list[int]] = {}
        for worker, load in self._loads.items():
            for ticket, number in load.held.items():
                if ticket not in self._stale and number not in keep:
                    stale.setdefault(worker, []).append(ticket)
        self._stale.update(*stale.values())
        self.unconsumed = len(keep) - len(self.parked())
        return stale

    def given(self) -> dict[int, set[Number]]:
        """Wanted numbers that are with a worker, by worker."""
        stale = self._stale
        return {
            worker: {number for ticket, number in load.held.items() if ticket not in stale}
            for worker, load in self._loads.items()
        }

    def waiting(self) -> set[Number]:
        """Numbers that hold a credit, and wait for a worker."""
        return set(self._waiting).union(*self._parked.values()) - self.parked()

    def parked(self) -> set[Number]:
        """Numbers that were drawn, and hold no credit."""
        return set() if self._in_order else set().union(*self._parked.values())

    def shard_over(self, number: Number) -> list[Number]:
        """There is no such batch, nor any after it in its shard. Returns those that were parked."""
        worker = number.k % self._nb_shards
        self._dry[worker] = max(number.epoch, self._dry.get(worker, -1))
        if self._in_order:
            return []  # its worker will say so of each
        heap = self._parked.pop(worker, [])
        for later in [later for later in heap if later.epoch != number.epoch]:
            self._park(later)
        return [over for over in heap if over.epoch == number.epoch]

    def holders(self, number: Number | None) -> list[int]:
        """The workers that are to make `number`; for None, all that are to make anything."""
        return sorted(
            worker
            for worker, numbers in self.given().items()
            if (number in numbers if number is not None else numbers)
        )

    def answered(
        self, worker: int, ticket: int, busy_s: float | None = None, nbytes: int | None = None
    ) -> Number | None:
        """A worker answered. Returns the number, or None when nobody wants it (any more)."""
        load = self._loads.get(worker)
        number = None if load is None else load.held.pop(ticket, None)
        if load is None or number is None:
            return None
        depth = load.depth
        if busy_s is None or not load.capacity:
            load.settle()
        else:
            load.made(busy_s)
            if load.round_trip_s:
                self._grow_for_workers()
        longest = _LONGEST_QUEUE if load.depth > depth else _LONG_QUEUE
        if self._grows and nbytes is not None and self.credits < longest:
            self._grow(min(self._worth_holding(), _QUEUE_BYTES // max(1, nbytes)))
        if self._suspects:
            self._suspects.discard(number)
        if ticket in self._stale:
            self._stale.discard(ticket)
            return None
        return number

    def give_back(self, number: Number) -> None:
        """A number that was answered is to be made again."""
        heapq.heappush(self._waiting, number)

    def consumed(self) -> None:
        """The training loop has taken a batch: one credit more."""
        self.unconsumed -= 1

    # ---- who makes what

    def assign(self) -> list[Assignment]:
        """What is to be sent now.

        Nothing as long as every worker has something to go on with and few credits are free: a
        few orders in one message cost a third of as many messages.
        """
        given: list[Assignment] = []
        free = self.credits - self.unconsumed
        if not self._waiting and free < self._worth_sending and not self._somebody_is_short():
            return given
        if self._nb_shards:
            self._assign_shards(given)
            return given
        while self._waiting or self.unconsumed < self.credits:
            load = least_loaded(self._loads.values())
            if load is None or not self._may_take(load):
                break
            if self._waiting:
                number = heapq.heappop(self._waiting)
            else:
                fresh = next(self._source, None)
                if fresh is None:
                    break
                number = fresh
                self.unconsumed += 1
            given.append(self._give(load, number))
        return given

    def _give(self, load: Load[Number], number: Number) -> Assignment:
        ticket = next(self._tickets)
        load.held[ticket] = number
        if self._suspects and number in self._suspects:
            load.alone()
        return Assignment(load.worker, ticket, number)

    def _may_take(self, load: Load[Number]) -> bool:
        """Whether the next number that waits is no suspect, or can be made alone."""
        if not self._suspects or not self._waiting or self._waiting[0] not in self._suspects:
            return True
        return not load.held

    def _assign_shards(self, given: list[Assignment]) -> None:
        costs = 0 if self._in_order else 1  # a credit, to leave the parked ones
        waiting, self._waiting = sorted(self._waiting), []
        for number in waiting:
            load = self._with_room(number.k % self._nb_shards)
            if load is None:
                self._waiting.append(number)  # sorted as it is, a heap
            else:
                given.append(self._give(load, number))
        for worker, heap in self._parked.items():
            while heap and self.unconsumed + costs <= self.credits:
                load = self._with_room(worker)
                if load is None:
                    break
                self.unconsumed += costs
                given.append(self._give(load, heapq.heappop(heap)))
        while self.unconsumed < self.credits and (self._in_order or self._somebody_could_take()):
            fresh = next(self._source, None)
            if fresh is None:
                break
            self._drawn_epoch = fresh.epoch
            worker = fresh.k % self._nb_shards
            load = None if self._parked.get(worker) else self._with_room(worker)
            if load is not None or self._in_order:
                self.unconsumed += 1
            if load is None:
                self._park(fresh)
            else:
                given.append(self._give(load, fresh))

    def _with_room(self, worker: int) -> Load[Number] | None:
        load = self._loads.get(worker)
        if load is None or not load.has_room:
            return None
        if not self._in_order and len(load.held) >= max(1, self.credits // self._nb_shards):
            return None  # with more, a slow shard would have the credits of the others
        return load

    def _park(self, number: Number) -> None:
        heapq.heappush(self._parked.setdefault(number.k % self._nb_shards, []), number)

    def _somebody_could_take(self) -> bool:
        """Whether a number that is still to be drawn may go to a worker at once."""
        if any(len(heap) >= _MOST_PARKED for heap in self._parked.values()):
            return False
        shards = range(self._nb_shards)
        live = [worker for worker in shards if self._dry.get(worker, -1) < self._drawn_epoch]
        return not live or any(
            self._with_room(worker) is not None and not self._parked.get(worker) for worker in live
        )

    def _somebody_is_short(self) -> bool:
        for load in self._loads.values():  # noqa: SIM110 - twice as fast as `any`, for each batch
            if 0 < load.capacity >= len(load.held):
                return True
        return False

    def _worth_holding(self) -> int:
        """Credits for small batches: what workers may hold, and as much again that is ready."""
        held = sum(load.depth for load in self._loads.values())
        return max(_LONG_QUEUE, min(2 * held, _LONGEST_QUEUE))

    def _grow_for_workers(self) -> None:
        self._grow(sum((2 + load.on_the_way) * load.capacity for load in self._loads.values()))

    def _grow(self, credits: int) -> None:
        if self._grows and credits > self.credits:
            self.credits = credits
            self._worth_sending = min(credits, _LONG_QUEUE) // 2
