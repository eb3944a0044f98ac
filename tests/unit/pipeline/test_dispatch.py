"""Who is given which number, without a process."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_loader.order.part import Number
from swift_loader.pipeline.dispatch import Assignment, Dispatch


def dispatch(size: int, **options: Any) -> Dispatch:
    made = Dispatch(size, 10, **options)
    made.restart((Number(0, 0, k) for k in count()), set())
    return made


@pytest.mark.parametrize("nb_workers", [1, 5, 6, 16, 64])
def test_all_workers_have_two_orders_each_where_the_queue_grows(nb_workers: int) -> None:
    books = dispatch(10, grows=True)
    for worker in range(nb_workers):
        books.add_worker(worker)
    orders = books.assign()
    held = [sum(order.worker == worker for order in orders) for worker in range(nb_workers)]
    assert held == [2] * nb_workers
    assert sorted(order.number.k for order in orders) == list(range(2 * nb_workers))


def test_the_queue_grows_with_the_workers_behind_an_endpoint() -> None:
    books = dispatch(10, grows=True)
    books.add_worker(0, capacity=24)
    assert len(books.assign()) == 48


def test_a_queue_that_was_asked_for_stays_as_it_is() -> None:
    books = dispatch(3)
    for worker in range(8):
        books.add_worker(worker)
    assert len(books.assign()) == 3
    books.consumed()
    assert len(books.assign()) == 1


@pytest.mark.parametrize(("nb_workers", "size"), [(2, 2), (2, 3), (3, 3), (3, 4), (4, 2)])
def test_a_slow_shard_leaves_credits_to_the_others_out_of_order(nb_workers: int, size: int) -> None:
    books = Dispatch(size, 2, in_order=False)
    books.restart((Number(0, 0, k) for k in count()), set(), nb_workers)
    for worker in range(nb_workers):
        books.add_worker(worker)
    given = books.assign()
    made = 0
    while quick := [order for order in given if order.worker != 0]:
        for order in quick:
            books.answered(order.worker, order.ticket, 1e-4)
            books.consumed()
        made += len(quick)
        given = books.assign()
        if made > 100:
            return
    pytest.fail(f"all wait for worker 0 after {made} batches")


def test_a_retired_worker_gets_nothing_more_and_is_done_when_it_has_answered() -> None:
    books = dispatch(8)
    books.add_worker(0)
    books.add_worker(1)
    given = books.assign()
    books.retire(0)
    for order in given:
        assert not books.is_done(order.worker)
        books.answered(order.worker, order.ticket, 1e-4)
        books.consumed()
    assert books.is_done(0)
    assert {order.worker for order in books.assign()} == {1}


def test_numbers_of_a_dead_worker_are_the_first_to_be_given_out_again() -> None:
    books = dispatch(4)
    books.add_worker(0)
    books.add_worker(1)
    books.assign()
    lost = [number.k for number in books.remove_worker(0).values()]
    books.add_worker(2)
    assert [order.number.k for order in books.assign()] == lost


@pytest.mark.parametrize(("nbytes", "longest"), [(0, 40), (1000, 40), (2 << 20, 32), (9 << 20, 10)])
def test_the_queue_is_longer_where_batches_are_small(nbytes: int, longest: int) -> None:
    books = dispatch(10, grows=True)
    books.add_worker(0, capacity=1)
    books.add_worker(1, capacity=1)
    held = books.assign()
    most = 0
    for _ in range(200):
        order = held.pop(0)
        books.answered(order.worker, order.ticket, 1e-5, nbytes)  # nothing is consumed
        held += books.assign()
        most += 1
        if not held:
            break
    assert most == longest


@pytest.mark.parametrize(
    ("busy_s", "nbytes", "longest"),
    [(0.0, 1000, 160), (200e-6, 1000, 2 * 2 * 20), (0.0, 1 << 20, 64), (0.01, 1000, 40)],
)
def test_the_queue_covers_what_fast_workers_hold(busy_s: float, nbytes: int, longest: int) -> None:
    books = Dispatch(10, grows=True)
    books.restart((Number(0, 0, k) for k in count()), set())
    books.add_worker(0)
    books.add_worker(1)
    for _ in range(300):
        for order in books.assign():
            books.answered(order.worker, order.ticket, busy_s, nbytes)
            books.consumed()
    assert books.credits == longest


def test_a_queue_that_was_asked_for_does_not_grow_with_small_batches() -> None:
    books = dispatch(3)
    books.add_worker(0)
    for order in books.assign():
        books.answered(order.worker, order.ticket, 1e-5, 8)
    assert len(books.assign()) == 1  # the worker was given two of three


def test_a_long_line_to_an_endpoint_is_filled() -> None:
    books = dispatch(10, grows=True)
    books.add_worker(0, capacity=2, round_trip_s=0.040)
    first = books.assign()
    books.answered(0, first[0].ticket, 0.002, 9 << 20)
    books.assign()
    held = sum(len(numbers) for numbers in books.given().values())
    assert held >= 2 * 20  # what two workers make in 40 ms


@given(
    nb_workers=st.integers(1, 4),
    size=st.integers(1, 12),
    poison=st.integers(0, 30),
    lost=st.integers(0, 2),
    turns=st.randoms(use_true_random=False),
)
def test_a_batch_that_kills_is_found_though_answers_die_with_the_worker(
    nb_workers: int, size: int, poison: int, lost: int, turns: Random
) -> None:
    """A worker that dies takes its `lost` last answers with it; nobody knows what it was at."""
    books = dispatch(size)
    held: dict[int, list[Assignment]] = {}
    # Answers on their way, which the worker may take with it.
    unheard: dict[int, list[Assignment]] = {}
    fresh = count()

    def add() -> None:
        worker = next(fresh)
        held[worker], unheard[worker] = [], []
        books.add_worker(worker)

    def hear(worker: int, but: int) -> None:
        while len(unheard[worker]) > but:
            order = unheard[worker].pop(0)
            books.answered(worker, order.ticket, 1e-4)
            made.append(order.number.k)
            books.consumed()

    for _ in range(nb_workers):
        add()
    made: list[int] = []
    blamed: list[int] = []
    nb_deaths = 0
    while len(blamed) < 2:
        for order in books.assign():
            held[order.worker].append(order)
        at_work = [worker for worker in held if held[worker]]
        if not at_work:
            for worker in held:
                hear(worker, 0)
            continue
        worker = turns.choice(at_work)
        if held[worker][0].number.k != poison:
            unheard[worker].append(held[worker].pop(0))
            hear(worker, lost)
            continue
        unanswered = unheard.pop(worker) + held.pop(worker)
        known = len(unanswered) == 1
        assert known or nb_deaths == 0
        nb_deaths += 1
        blamed += [order.number.k for order in unanswered if known]
        books.remove_worker(worker)
        for order in () if known else unanswered:
            books.suspect(order.number)
        add()
    assert blamed == [poison, poison]
    assert sorted(made) == sorted(set(made) - {poison})


def test_other_batches_wait_only_until_a_suspect_is_given_out() -> None:
    books = dispatch(6)
    books.add_worker(0)
    books.add_worker(1)
    first = [order for order in books.assign() if order.worker == 0]
    suspect = first[0]
    books.remove_worker(0)
    books.suspect(suspect.number)
    books.add_worker(2)
    given = books.assign()
    assert [(o.worker, o.number) for o in given if o.worker == 2] == [(2, suspect.number)]
    books.answered(2, next(o.ticket for o in given if o.worker == 2), 1e-4)
    books.consumed()
    assert len([o for o in books.assign() if o.worker == 2]) > 1
