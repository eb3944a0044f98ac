"""Exactly once, in order, bounded by credits, always to the end: whoever dies, hangs or lies."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from swift_loader.errors import TooManyBadSamplesError, WorkerDiedError, WorkerTimeoutError
from swift_loader.pipeline.actions import Halt, Kill
from swift_loader.pipeline.link import Gone
from swift_loader.transport.messages import BadSample
from tests.unit.pipeline.world import Epochs, World, options

LIFE = 400  # steps


def world_of(seed: int) -> World:
    """A set-up by chance."""
    random = Random(seed)
    kind = random.choice(["planned", "planned", "sampled", "unsized", "stream", "stream"])
    nb_workers = random.randint(1, 4)
    count = random.choice([0, 1, 3, 8, 20]) if kind == "planned" else random.choice([1, 3, 8, 20])
    order = Epochs(count)
    nb_elsewhere = random.choice([0, 0, 1, 2])
    if kind == "sampled":
        order = Epochs(count, known_ahead=False)
    elif kind == "unsized":
        order = Epochs(count, known_ahead=False, length_known=False)
    elif kind == "stream":
        lengths = tuple(random.choice([0, 1, 4, 9]) for _ in range(nb_workers))
        order, nb_elsewhere = Epochs(max(1, sum(lengths)), lengths), 0
    made = World(
        order,
        nb_workers,
        options(
            data_queue_size=random.choice([1, 2, 6, 12]),
            queue_grows=random.random() < 0.5,
            message_queue_size=random.choice([None, 1, 2, 10]),
            max_buffer_size=random.choice([1, 3]),
            in_order=random.random() < 0.7,
            auto_workers=kind != "stream" and not nb_elsewhere and random.random() < 0.3,
        ),
        random,
        nb_elsewhere,
    )
    made.begins(order.part(0))
    return made


def live(seed: int) -> int:
    """One life by chance; returns its steps."""
    world = world_of(seed)
    try:
        for _ in range(LIFE):
            world.step()
        world.drain()
        world.check_nothing_is_left()
        assert world.halted is None
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, step {world.nb_steps}: {error}") from error
    return world.nb_steps


def test_every_batch_comes_once_in_order_whoever_dies_hangs_or_answers_twice() -> None:
    steps, seed = 0, 0
    while steps < 100_000:
        steps += live(seed)
        seed += 1


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_every_batch_comes_once_in_order_in_many_more_lives() -> None:
    until_s = time.monotonic() + 600
    seed = 1_000_000
    while time.monotonic() < until_s:
        live(seed)
        seed += 1


class BooksMachine(RuleBasedStateMachine):
    """The same steps, chosen by Hypothesis, which looks for a short way to something wrong."""

    @initialize(seed=st.integers(0, 2**32))
    def open(self, seed: int) -> None:
        self.world = world_of(seed)

    @rule(data=st.data())
    @precondition(lambda self: self.world.workers(up=False))
    def comes_up(self, data: Any) -> None:
        self.world.comes_up(data.draw(st.sampled_from(self.world.workers(up=False))))

    @rule(data=st.data(), fails=st.booleans(), twice=st.booleans())
    @precondition(lambda self: self.world.with_orders())
    def answers(self, data: Any, fails: bool, twice: bool) -> None:
        worker = data.draw(st.sampled_from(self.world.with_orders()))
        self.world.answers(worker, fails=fails, twice=twice)

    @rule(data=st.data())
    @precondition(lambda self: self.world.links)
    def dies(self, data: Any) -> None:
        self.world.dies(data.draw(st.sampled_from(sorted(self.world.links))))

    @rule()
    def takes(self) -> None:
        self.world.takes()

    @rule()
    def times_out(self) -> None:
        self.world.times_out()

    @rule()
    @precondition(lambda self: self.world.has_ended)
    def begins_the_next(self) -> None:
        self.world.begins(self.world.order.part(self.world.part.epoch + 1))

    @rule()
    def turns_to_something_else(self) -> None:
        self.world.turns_to_something_else()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()
            self.world.check_nothing_is_left()


TestBooksMachine = BooksMachine.TestCase
TestBooksMachine.settings = settings(max_examples=60, stateful_step_count=40)


def world(**given: Any) -> World:
    made = World(Epochs(50), 2, options(**given), Random(0))
    made.begins(made.order.part(0))
    for worker in (0, 1):
        made.comes_up(worker)
    return made


def test_a_batch_that_ends_two_workers_ends_the_run_and_is_named() -> None:
    made = world()
    for _ in range(2):
        ticket = next(iter(made.links[0].orders))
        number = made.links[0].orders[ticket]
        made.say(0, Gone("worker 0 was killed", ticket, sample=number.k))
        if made.halted is None:
            made.comes_up(0)
    assert isinstance(made.halted, WorkerDiedError)
    assert "batch 0 of epoch 0 of sample 0; the last sample that it began is 0" in str(made.halted)
    assert "The same batch has ended 2 workers" in str(made.halted)


def test_a_batch_whose_workers_are_killed_from_outside_is_tried_once_more_alone() -> None:
    made = world()
    made.links[1].orders.clear()  # worker 1 hangs: worker 0 is the one that gets everything
    for death in (1, 2, 3):
        assert made.halted is None
        ticket = next(t for t, number in made.links[0].orders.items() if number.k == 0)
        if death == 3:
            assert len(made.links[0].orders) == 1, "alone"
        made.say(0, Gone("worker 0 was killed", ticket, outside=True))
        if death < 3:
            made.comes_up(0)
    assert isinstance(made.halted, WorkerDiedError)
    assert "The same batch has ended 3 workers" in str(made.halted)


def test_a_batch_may_end_as_many_workers_as_the_option_says() -> None:
    made = world(max_deaths_per_batch=4)
    made.links[1].orders.clear()  # worker 1 hangs: worker 0 is the one that gets everything
    for death in range(1, 5):
        assert made.halted is None
        ticket = next(t for t, number in made.links[0].orders.items() if number.k == 0)
        assert (len(made.links[0].orders) == 1) is (death > 2), "alone from the second death on"
        made.say(0, Gone("worker 0 was killed", ticket))
        if death < 4:
            made.comes_up(0)
    assert isinstance(made.halted, WorkerDiedError)
    assert "The same batch has ended 4 workers" in str(made.halted)
    assert "max_deaths_per_batch" in str(made.halted)


def test_restarts_are_bounded_in_each_epoch() -> None:
    made = world(max_worker_restarts=2)
    for epoch in (1, 2):
        for _ in range(2):
            made.say(0, Gone("worker 0 was killed", None))
            made.comes_up(0)
        made.begins(made.order.part(epoch))
    for _ in range(3):
        assert made.halted is None
        made.say(0, Gone("worker 0 was killed", None))
        if made.halted is None:
            made.comes_up(0)
    assert isinstance(made.halted, WorkerDiedError)
    assert "max_worker_restarts=2" in str(made.halted)


def test_after_the_end_nobody_is_launched_or_given_work() -> None:
    made = world(max_worker_restarts=0)
    made.say(0, Gone("worker 0 was killed", None))
    assert made.halted is not None
    orders = dict(made.links[1].orders)
    made.say(1, Gone("worker 1 was killed", None))
    assert orders
    assert not made.links


def test_too_many_bad_samples_end_the_run() -> None:
    made = world(max_bad_samples=1)
    item = made.made(0, next(iter(made.links[0].orders)))
    assert item.made is not None
    bad = (BadSample(1, "broken", True), BadSample(2, "broken", True))
    item.made = item.made._replace(bad=bad)
    actions = made.books.handle(0, "worker 0", [item], 0.0)
    (error,) = [action.error for action in actions if isinstance(action, Halt)]
    assert isinstance(error, TooManyBadSamplesError)


def test_the_worker_that_holds_the_loop_up_is_ended_and_no_other() -> None:
    made = world()
    slow = next(worker for worker in (0, 1) if made.order.part(0) and _holds(made, worker, 0))
    actions = made.books.timed_out(5.0, 0.0, {0: "sleeps", 1: "sleeps"})
    assert [action.worker for action in actions if isinstance(action, Kill)] == [slow]


def test_a_timeout_is_an_error_that_names_the_batch_and_says_where_workers_are() -> None:
    made = world(on_timeout="raise")
    with pytest.raises(WorkerTimeoutError, match=r"batch 0 of epoch 0 has not come") as caught:
        made.books.timed_out(5.0, 0.0, {0: "worker 0: in read()"})
    assert "worker 0: in read()" in str(caught.value)


def _holds(made: World, worker: int, k: int) -> bool:
    return any(number.k == k for number in made.links[worker].orders.values())
