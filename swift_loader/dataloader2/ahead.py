"""The read-ahead thread: takes items from an iterator before they are asked for.

Roles: the *reader thread* runs the source; the *consumer* is whoever calls `next`. They share one
`_State` under one condition and say to each other:

| who | says | by |
|---|---|---|
| reader | here is an item / an error / the end | appending to `items` |
| consumer | there is room again | taking from `items` |
| consumer | hold still, go on | `paused`; answered by `busy` turning false |
| consumer | end | `stopped` |

Both sides sleep on the condition until they are told; nothing polls. The lock is never held while
the source runs. The thread knows the state and the source, not the `ReadAhead`: dropping that ends
the thread, at the latest when the interpreter exits.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from swift_loader.dataloader2.error import PrefetchTimeoutError
from swift_loader.errors import ClosedError

__all__ = ["ReadAhead"]

T = TypeVar("T")

# How long `stop` waits for a source that is in the middle of an item. A source can't be
# interrupted; one that hangs must not take the training script with it.
STOP_TIMEOUT_S = 20.0
# The same for a source that has let its consumer's timeout pass already.
OVERDUE_STOP_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class _Item:
    value: Any


@dataclass(frozen=True)
class _Failed:
    error: BaseException


class _Ended:
    pass


@dataclass
class _State:
    capacity: int
    fill_on_stop: bool
    changed: threading.Condition = field(default_factory=threading.Condition)
    items: deque[_Item | _Failed | _Ended] = field(default_factory=deque)
    busy: bool = True
    paused: bool = False
    stopped: bool = False
    overdue: bool = False
    reader_waits: bool = False
    consumer_waits: bool = False

    def reader_must_end(self) -> bool:
        return self.stopped and (not self.fill_on_stop or len(self.items) >= self.capacity)

    def reader_may_go(self) -> bool:
        room = len(self.items) < self.capacity and (not self.paused or self.stopped)
        return room or self.reader_must_end()


def _run(state: _State, make_source: Callable[[], Iterator[Any]]) -> None:
    """Body of the reader thread."""
    changed = state.changed
    made: _Item | _Failed | _Ended
    try:
        source = make_source()
        with changed:
            go_on = _hold_still(state)
        while go_on:
            made = _Item(next(source))
            with changed:
                state.items.append(made)
                del made  # the consumer's alone from here on: it may hold a shared buffer
                if state.consumer_waits:
                    changed.notify_all()
                go_on = _hold_still(state)
        return
    except StopIteration:
        made = _Ended()
    except BaseException as error:  # noqa: BLE001 raised again where the item was to come
        made = _Failed(error)
    with changed:
        state.items.append(made)
        state.busy = False
        changed.notify_all()


def _hold_still(state: _State) -> bool:
    """Wait, under the lock, until there is room for an item. False: the thread must end."""
    if not state.reader_may_go():
        state.busy = False
        state.reader_waits = True
        state.changed.notify_all()
        state.changed.wait_for(state.reader_may_go)
        state.reader_waits = False
    state.busy = not state.reader_must_end()
    return state.busy


def _stop(state: _State, thread: threading.Thread, where: str) -> None:
    with state.changed:
        state.stopped = True
        state.changed.notify_all()
    # Garbage collection may run this in the reader thread itself.
    if thread is threading.current_thread() or thread.ident is None:
        return
    timeout_s = OVERDUE_STOP_TIMEOUT_S if state.overdue else STOP_TIMEOUT_S
    thread.join(timeout_s)
    if thread.is_alive():
        warnings.warn(
            f"{where} did not finish its item within {timeout_s:g} s of being stopped; its "
            "thread is left behind and ends with that item.",
            RuntimeWarning,
            stacklevel=2,
        )


class ReadAhead(Generic[T]):
    """An iterator over `make_source()`, run by a thread up to `capacity` items ahead.

    Items come in order; what the source raises is raised where its item was to come. `where` names
    the source in messages. `fill_on_stop`: on `stop`, the thread first fills its buffer, so that
    the number of items that it took is a function of the number that were consumed (what collective
    calls in the source need).
    """

    def __init__(
        self,
        make_source: Callable[[], Iterator[T]],
        capacity: int,
        *,
        where: str = "the source pipe",
        fill_on_stop: bool = False,
    ) -> None:
        self._where = where
        self._state = _State(capacity, fill_on_stop)
        self._thread = threading.Thread(
            target=_run, args=(self._state, make_source), name=f"read ahead of {where}", daemon=True
        )
        # The finalizer also runs before the interpreter goes down, so no daemon is cut off in its
        # work.
        self._finalizer = weakref.finalize(self, _stop, self._state, self._thread, where)
        self._thread.start()

    def take(self, timeout_s: float | None = None) -> T:
        """The next item. Raises `StopIteration` at the end, again at each further call.

        `PrefetchTimeoutError` after `timeout_s` without one (`None` waits for ever), `ClosedError`
        after `stop`.
        """
        state = self._state
        with state.changed:
            if not state.items and not state.stopped:
                state.consumer_waits = True
                state.changed.wait_for(lambda: state.items or state.stopped, timeout_s)
                state.consumer_waits = False
            if state.stopped:
                raise ClosedError(f"The read-ahead of {self._where} was shut down.")
            if not state.items:
                assert timeout_s is not None
                state.overdue = True
                raise PrefetchTimeoutError(timeout_s, self._where)
            if isinstance(state.items[0], _Ended):
                raise StopIteration
            taken = state.items.popleft()
            if isinstance(taken, _Failed):
                state.items.append(_Ended())
            # Woken at half, not at each item: a thread switch costs more than most items.
            if state.reader_waits and len(state.items) <= state.capacity // 2:
                state.changed.notify_all()
        if isinstance(taken, _Failed):
            raise taken.error
        assert isinstance(taken, _Item)
        value: T = taken.value
        return value

    def __iter__(self) -> ReadAhead[T]:
        return self

    def __next__(self) -> T:
        return self.take()

    def __len__(self) -> int:
        """How many items are there to take at once."""
        with self._state.changed:
            return sum(isinstance(item, _Item) for item in self._state.items)

    def pause(self) -> None:
        """Return once the source stands still; it stays so until `resume`. Buffered items stay."""
        state = self._state
        with state.changed:
            state.paused = True
            state.changed.wait_for(lambda: not state.busy)

    def resume(self) -> None:
        """Undo `pause`."""
        with self._state.changed:
            self._state.paused = False
            self._state.changed.notify_all()

    def stop(self) -> None:
        """End the thread and drop what is buffered. Again is a no-op.

        Waits for the item that the source is at, no longer than 20 s (1 s where it has let a
        timeout pass already), then warns and leaves it.
        """
        self._finalizer()
        with self._state.changed:
            self._state.items.clear()
