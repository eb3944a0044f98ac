"""Which worker makes which batch number. Pure: no I/O, no clock, no threads.

Numbers are given out in order, lowest first, as long as there are credits: at most
`data_queue_size` batches are made and not yet consumed. Where it `grows`, there are at least twice
as many as there turn out to be workers, and as many as lie in `_QUEUE_BYTES`, up to
`_LONGEST_QUEUE`: ten small batches are made in less time than a process is kept from its core by
another one. A worker that dies gives its numbers back, and they are the first to be given out
again; so the order of delivery never depends on who made what.

A worker is not loaded with numbers to the brim: what lies in its inbox behind a slow sample can't
be made by anybody else. It gets as many as cover about `_AHEAD_S` of its own pace, at least two
(one to make, one to go on with) and at most `message_queue_size`. `capacity` makes that many more
of a link behind which several workers stand (an endpoint). What can be made while an order and its
batch are on their way is covered besides, and the queue grows by as much.

A batch of a stream can be made by one worker only: with `nb_shards`, batch ``k`` is parked until
worker ``k % nb_shards`` has room, and does not hold up those of others.

A suspect is one of several numbers that a worker may have been at when it died. It is made alone,
by a worker that has no other order, so that its next death is beyond doubt.

States of a number: waiting → outstanding (ticket) → answered; or → stale → answered.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from swift_loader.order.part import Number

__all__ = ["Dispatch", "Order"]

_AHEAD_S = 0.004
_PACE_WEIGHT = 0.2
_QUEUE_BYTES = 32 << 20
_LONGEST_QUEUE = 40
_MOST_ON_THE_WAY = 128  # a worker: small batches over a long line


class Order(NamedTuple):
    """Worker `worker` is to make `number`."""

    worker: int
    ticket: int
    number: Number


@dataclass(slots=True)
class _Worker:
    capacity: int
    round_trip_s: float = 0.0
    pace_s: float | None = None  # seconds a batch, smoothed
    tickets: set[int] = field(default_factory=set)
    depth: int = 0  # orders that it may hold


class Dispatch:
    """The books of one consumer's batch numbers."""

    def __init__(
        self, data_queue_size: int, message_queue_size: int, *, grows: bool = False
    ) -> None:
        self._credits = data_queue_size
        self._grows = grows
        self._limit = message_queue_size
        self._worth_sending = max(1, data_queue_size // 2)
        self._workers: dict[int, _Worker] = {}
        self._tickets = count(1)
        self._orders: dict[int, Order] = {}  # outstanding, by ticket
        self._stale: set[int] = set()  # outstanding tickets that nobody wants any more
        self._waiting: list[Number] = []  # heap of numbers that were given back
        self._source: Iterator[Number] = iter(())
        self._nb_shards = 0
        self._parked: dict[int, list[Number]] = {}  # heaps, by worker
        self._suspects: set[Number] = set()
        self._unconsumed = 0  # given out (or given back), not stale, not consumed

    def add_worker(self, worker: int, capacity: int = 1, round_trip_s: float = 0.0) -> None:
        """A worker that takes orders from now on."""
        state = self._workers[worker] = _Worker(capacity, round_trip_s)
        state.depth = self._depth(state)
        self._grow_for_workers()

    def _grow_for_workers(self) -> None:
        self._grow(sum((2 + _on_the_way(w)) * w.capacity for w in self._workers.values()))

    def _grow(self, credits: int) -> None:
        if self._grows and credits > self._credits:
            self._credits = credits
            self._worth_sending = min(credits, _LONGEST_QUEUE) // 2

    def remove_worker(self, worker: int, suspects: Collection[int] = ()) -> list[Order]:
        """The worker is gone; its wanted numbers will be given out again. Returns its orders.

        `suspects`: the tickets of one of which it died, where that is not known.
        """
        gone = self._workers.pop(worker, None)
        if gone is None:
            return []
        orders = [self._orders.pop(ticket) for ticket in sorted(gone.tickets)]
        for order in orders:
            if order.ticket in self._stale:
                self._stale.discard(order.ticket)
            else:
                heapq.heappush(self._waiting, order.number)
                if order.ticket in suspects:
                    self._suspects.add(order.number)
        return orders

    def retire(self, worker: int) -> None:
        """The worker gets no more orders; `is_done` when it has answered those it has."""
        state = self._workers.get(worker)
        if state is not None:
            state.capacity = state.depth = 0

    def is_done(self, worker: int) -> bool:
        """Whether a retired worker owes no answer."""
        state = self._workers.get(worker)
        return state is not None and state.capacity == 0 and not state.tickets

    def restart(
        self,
        source: Iterator[Number],
        keep: set[Number],
        nb_shards: int = 0,
    ) -> dict[int, list[int]]:
        """Give out the numbers of `source` from now on, to any worker or to the one that must.

        Of those given out before, `keep` are still wanted and the rest are not. Returns the stale
        tickets by worker, so that workers can be told.
        """
        self._source = source
        self._nb_shards = nb_shards
        parked = [number for heap in self._parked.values() for number in heap]
        self._parked.clear()
        self._suspects &= keep
        self._waiting = [number for number in self._waiting + parked if number in keep]
        heapq.heapify(self._waiting)
        stale: dict[int, list[int]] = {}
        for ticket, order in self._orders.items():
            if ticket not in self._stale and order.number not in keep:
                self._stale.add(ticket)
                stale.setdefault(order.worker, []).append(ticket)
        self._unconsumed = len(keep)
        return stale

    def outstanding(self) -> set[Number]:
        """Wanted numbers that are with a worker, or wait to be given out again."""
        wanted = {o.number for t, o in self._orders.items() if t not in self._stale}
        return wanted.union(self._waiting, *self._parked.values())

    def orders(self) -> list[Order]:
        """What is to be sent now.

        Nothing as long as every worker has something to go on with and few credits are free: a
        few orders in one message cost a third of as many messages.
        """
        orders: list[Order] = []
        free = self._credits - self._unconsumed
        if not self._waiting and free < self._worth_sending and not self._somebody_is_short():
            return orders
        if self._parked:
            self._unpark(orders)
        while self._waiting or self._unconsumed < self._credits:
            worker = self._least_loaded()
            if worker is None and not self._nb_shards:
                break
            if self._suspects and not self._may_take(worker):
                break
            if self._waiting:
                number = heapq.heappop(self._waiting)
            else:
                fresh = next(self._source, None)
                if fresh is None:
                    break
                number = fresh
                self._unconsumed += 1
            if self._nb_shards:
                worker = number.k % self._nb_shards
                if not self._has_room(worker):
                    heapq.heappush(self._parked.setdefault(worker, []), number)
                    continue
            assert worker is not None
            orders.append(self._order(worker, number))
        return orders

    def _order(self, worker: int, number: Number) -> Order:
        order = Order(worker, next(self._tickets), number)
        self._orders[order.ticket] = order
        state = self._workers[worker]
        state.tickets.add(order.ticket)
        if number in self._suspects:
            state.depth = 1  # until it is answered
        return order

    def _may_take(self, worker: int | None) -> bool:
        """Whether the next number that waits is no suspect, or `worker` can make it alone."""
        if worker is None or not self._waiting or self._waiting[0] not in self._suspects:
            return True
        return not self._workers[worker].tickets

    def _unpark(self, orders: list[Order]) -> None:
        for worker, heap in self._parked.items():
            while heap and self._has_room(worker):
                orders.append(self._order(worker, heapq.heappop(heap)))

    def _has_room(self, worker: int) -> bool:
        state = self._workers.get(worker)
        return state is not None and len(state.tickets) < state.depth

    def answered(
        self, worker: int, ticket: int, busy_s: float | None = None, nbytes: int | None = None
    ) -> Number | None:
        """A worker answered. Returns the number, or None when nobody wants it (any more)."""
        order = self._orders.pop(ticket, None)
        if order is None:
            return None
        state = self._workers[worker]
        state.tickets.discard(ticket)
        if busy_s is not None:
            old = state.pace_s
            state.pace_s = busy_s if old is None else old + _PACE_WEIGHT * (busy_s - old)
            if state.round_trip_s:
                self._grow_for_workers()
        if nbytes is not None and self._credits < _LONGEST_QUEUE:
            self._grow(min(_LONGEST_QUEUE, _QUEUE_BYTES // max(1, nbytes)))
        state.depth = self._depth(state)
        if self._suspects:
            self._suspects.discard(order.number)
        if ticket in self._stale:
            self._stale.discard(ticket)
            return None
        return order.number

    def give_back(self, number: Number) -> None:
        """An answered number that is to be made again."""
        heapq.heappush(self._waiting, number)

    def consumed(self) -> None:
        """The training loop has taken a batch: one credit more."""
        self._unconsumed -= 1

    def holders(self, number: Number | None) -> list[int]:
        """The workers that are to make `number`; for None, all that are to make anything."""
        wanted = [o for t, o in self._orders.items() if t not in self._stale]
        return sorted({o.worker for o in wanted if number is None or o.number == number})

    def _somebody_is_short(self) -> bool:
        for state in self._workers.values():  # noqa: SIM110 - twice as fast as `any`, for each batch
            if 0 < state.capacity >= len(state.tickets):
                return True
        return False

    def _least_loaded(self) -> int | None:
        best, least = None, 0.0
        for worker, state in self._workers.items():
            held = len(state.tickets)
            if held < state.depth and (best is None or held / state.capacity < least):
                best, least = worker, held / state.capacity
        return best

    def _depth(self, state: _Worker) -> int:
        in_hand = 2
        if state.pace_s is not None:
            in_hand = max(2, 1 + int(_AHEAD_S / (state.pace_s + 1e-6)))
        return (min(self._limit, in_hand) + _on_the_way(state)) * state.capacity


def _on_the_way(state: _Worker) -> int:
    """Batches that a worker makes while an order goes to it, and its batch comes back."""
    if state.pace_s is None:
        return 0
    return min(_MOST_ON_THE_WAY, int(state.round_trip_s / (state.pace_s + 1e-6)))
