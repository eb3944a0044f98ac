"""Who is given which number, without a process."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from swift_loader.pipeline.dispatch import Dispatch
from swift_loader.transport.messages import Number


def dispatch(size: int, **options: Any) -> Dispatch:
    made = Dispatch(size, 10, **options)
    made.restart((Number(0, 0, k) for k in count()), set())
    return made


@pytest.mark.parametrize("nb_workers", [1, 5, 6, 16, 64])
def test_all_workers_have_two_orders_each_where_the_queue_grows(nb_workers: int) -> None:
    books = dispatch(10, grows=True)
    for worker in range(nb_workers):
        books.add_worker(worker)
    orders = books.orders()
    held = [sum(order.worker == worker for order in orders) for worker in range(nb_workers)]
    assert held == [2] * nb_workers
    assert sorted(order.number.k for order in orders) == list(range(2 * nb_workers))


def test_the_queue_grows_with_the_workers_behind_an_endpoint() -> None:
    books = dispatch(10, grows=True)
    books.add_worker(0, capacity=24)
    assert len(books.orders()) == 48


def test_a_queue_that_was_asked_for_stays_as_it_is() -> None:
    books = dispatch(3)
    for worker in range(8):
        books.add_worker(worker)
    assert len(books.orders()) == 3
    books.consumed()
    assert len(books.orders()) == 1


def test_numbers_of_a_dead_worker_are_the_first_to_be_given_out_again() -> None:
    books = dispatch(4)
    books.add_worker(0)
    books.add_worker(1)
    books.orders()
    lost = [order.number.k for order in books.remove_worker(0)]
    books.add_worker(2)
    assert [order.number.k for order in books.orders()] == lost


@pytest.mark.parametrize(("nbytes", "longest"), [(0, 40), (1000, 40), (1 << 20, 32), (9 << 20, 10)])
def test_the_queue_is_longer_where_batches_are_small(nbytes: int, longest: int) -> None:
    books = dispatch(10, grows=True)
    books.add_worker(0, capacity=1)
    books.add_worker(1, capacity=1)
    held = books.orders()
    most = 0
    for _ in range(200):
        order = held.pop(0)
        books.answered(order.worker, order.ticket, 1e-5, nbytes)  # nothing is consumed
        held += books.orders()
        most += 1
        if not held:
            break
    assert most == longest


def test_a_queue_that_was_asked_for_does_not_grow_with_small_batches() -> None:
    books = dispatch(3)
    books.add_worker(0)
    for order in books.orders():
        books.answered(order.worker, order.ticket, 1e-5, 8)
    assert len(books.orders()) == 1  # the worker was given two of three


def test_a_long_line_to_an_endpoint_is_filled() -> None:
    books = dispatch(10, grows=True)
    books.add_worker(0, capacity=2, round_trip_s=0.040)
    first = books.orders()
    books.answered(0, first[0].ticket, 0.002, 9 << 20)
    books.orders()
    assert len(books.outstanding()) >= 2 * 20  # what two workers make in 40 ms
