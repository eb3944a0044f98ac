"""Deals the items of one iterator to several takers by turns. Pure: no I/O, no processes.

Item i is for taker `i % nb_taker`, whoever asks first. What was made on the way to an asked-for
item waits, bounded in bytes: takers that consume at different rates (a `filter` after a dispatcher,
say) must not fill the memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from swift_loader.batch.tree import approximate_bytes

__all__ = ["MAX_WAITING_BYTES", "Dealer"]

MAX_WAITING_BYTES = 1 << 30


class Dealer:
    """`next_for(taker)` in place of `next`."""

    def __init__(
        self, items: Iterator[Any], nb_taker: int, max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self._items = items
        self._waiting: list[deque[tuple[Any, int]]] = [deque() for _ in range(nb_taker)]
        self._turn = 0
        self._error: BaseException | None = None  # that ended the iterator
        self._waiting_bytes = 0
        self._max_waiting_bytes = max_waiting_bytes

    def next_for(self, taker: int) -> Any:
        """The taker's next item.

        Raises `StopIteration` when there is none, and `BufferError` where too much waits for the
        others. What the iterator raises, every taker gets after the items that were dealt to it
        before.
        """
        waiting = self._waiting[taker]
        while not waiting:
            if self._error is not None:
                raise self._error
            try:
                item = next(self._items)
            except BaseException as error:
                self._error = error
                raise
            turn = self._turn
            self._turn = (turn + 1) % len(self._waiting)
            if turn == taker:
                return item
            self._keep(turn, item, taker)
        item, nbytes = waiting.popleft()
        self._waiting_bytes -= nbytes
        return item

    def _keep(self, turn: int, item: Any, taker: int) -> None:
        nbytes = approximate_bytes(item)
        self._waiting[turn].append((item, nbytes))
        self._waiting_bytes += nbytes
        if self._waiting_bytes > self._max_waiting_bytes:
            counts = {i: len(waiting) for i, waiting in enumerate(self._waiting)}
            raise BufferError(
                f"Worker {taker} takes items from sharding_round_robin_dispatch faster than the "
                f"others, for whom about {self._waiting_bytes:,} bytes wait (items by worker: "
                f"{counts}); the limit is {self._max_waiting_bytes:,}. Put pipes that drop or add "
                "items before the dispatcher, so that all workers take equally many."
            )
