"""The thread that reads ahead: bounds, errors, pauses, ends."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from swift_loader.dataloader2.ahead import ReadAhead
from swift_loader.dataloader2.error import PrefetchTimeoutError
from swift_loader.dataloader2.iter import IterableWrapper, Prefetcher
from swift_loader.errors import ClosedError


class Source:
    """Counts what was taken of it; can be made to block."""

    def __init__(self, nb_item: int, fail_at: int | None = None) -> None:
        self.taken = 0
        self.nb_item = nb_item
        self.fail_at = fail_at
        self.gate = threading.Event()
        self.gate.set()
        self.closed = threading.Event()

    def __call__(self) -> Iterator[int]:
        try:
            for i in range(self.nb_item):
                self.gate.wait()
                if i == self.fail_at:
                    raise KeyError("broken item")
                self.taken += 1
                yield i
        finally:
            self.closed.set()


def settled(value: Any, expected: Any) -> bool:
    """Does `value()` become `expected`, and stay so?"""
    deadline = time.monotonic() + 10
    while value() != expected and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    return bool(value() == expected)


def no_thread_left() -> bool:
    return settled(lambda: [t for t in threading.enumerate() if "read ahead" in t.name], [])


def test_items_come_in_order_and_the_end_stays_the_end() -> None:
    ahead = ReadAhead(Source(100), 7)
    assert list(ahead) == list(range(100))
    for _ in range(2):
        with pytest.raises(StopIteration):
            ahead.take()
    ahead.stop()


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_it_never_runs_further_ahead_than_its_capacity(capacity: int) -> None:
    source = Source(100)
    ahead = ReadAhead(source, capacity)
    for consumed in range(4):
        # At most one more is in the reader's hand: woken at half, it fills up again.
        assert settled(lambda: len(ahead) <= capacity, True)
        assert source.taken <= consumed + capacity
        assert ahead.take() == consumed
    ahead.stop()


def test_an_error_comes_where_its_item_was_to_come() -> None:
    ahead = ReadAhead(Source(10, fail_at=3), 2)
    assert [ahead.take() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="broken item"):
        ahead.take()
    with pytest.raises(StopIteration):
        ahead.take()
    ahead.stop()


def test_nothing_in_time_is_an_error_that_names_the_time() -> None:
    source = Source(1)
    source.gate.clear()
    ahead = ReadAhead(source, 1, where="the slow pipe")
    with pytest.raises(PrefetchTimeoutError, match=r"the slow pipe within 0\.05 s") as caught:
        ahead.take(timeout_s=0.05)
    assert caught.value.timeout == 0.05
    source.gate.set()
    assert ahead.take(timeout_s=10) == 0
    ahead.stop()


def test_a_pause_holds_the_source_still() -> None:
    source = Source(100)
    ahead = ReadAhead(source, 3)
    ahead.take()
    ahead.pause()
    taken = source.taken
    while len(ahead):
        ahead.take()
    assert settled(lambda: source.taken, taken)
    ahead.resume()
    assert ahead.take() == taken
    ahead.stop()


def test_stop_ends_the_source_and_wakes_nobody_later() -> None:
    source = Source(100)
    ahead = ReadAhead(source, 3)
    ahead.take()
    ahead.stop()
    ahead.stop()
    assert source.closed.wait(10)
    with pytest.raises(ClosedError):
        ahead.take()


def test_stop_while_the_consumer_waits_wakes_it() -> None:
    source = Source(1)
    source.gate.clear()
    ahead = ReadAhead(source, 1)
    raised: list[BaseException] = []

    def consume() -> None:
        try:
            ahead.take()
        except ClosedError as error:
            raised.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    stopper = threading.Thread(target=ahead.stop)
    stopper.start()
    consumer.join(10)
    assert not consumer.is_alive()
    assert len(raised) == 1
    source.gate.set()
    stopper.join(10)
    assert not stopper.is_alive()


@pytest.mark.parametrize("consumed", [0, 1, 3])
def test_with_fill_on_stop_what_was_taken_depends_on_what_was_consumed(consumed: int) -> None:
    for _ in range(20):
        source = Source(100)
        ahead = ReadAhead(source, 1, fill_on_stop=True)
        for _ in range(consumed):
            ahead.take()
        ahead.stop()
        assert source.taken == consumed + 1


def test_a_dropped_one_ends_its_thread() -> None:
    source = Source(100)
    ahead = ReadAhead(source, 2)
    ahead.take()
    del ahead
    gc.collect()
    assert source.closed.wait(10)
    assert no_thread_left()


def test_a_pipe_ends_its_thread_when_the_iteration_is_over_given_up_or_shut_down() -> None:
    pipe = Prefetcher(IterableWrapper(range(100)), 2)
    assert list(pipe) == list(range(100))
    assert no_thread_left()
    for item in pipe:
        if item == 3:
            break
    pipe.reset()
    assert no_thread_left()
    iterator = iter(pipe)
    next(iterator)
    pipe.shutdown()
    assert no_thread_left()
    with pytest.raises(ClosedError):
        next(iterator)


def test_pipes_that_read_ahead_can_stand_behind_each_other() -> None:
    pipe = IterableWrapper(range(200)).prefetch(2).prefetch(3).map(abs).prefetch(1)
    assert list(pipe) == list(range(200))
    iterator = iter(pipe)
    next(iterator)
    assert list(pipe) == list(range(200))
    with pytest.raises(RuntimeError, match="invalidated"):
        next(iterator)
    del iterator
    assert no_thread_left()


def test_bad_buffer_sizes_are_refused() -> None:
    for size in (0, -1):
        with pytest.raises(ValueError, match="buffer_size"):
            IterableWrapper([]).prefetch(size)
