"""A session whose workers can't be started for now, or end unheard."""

from __future__ import annotations

import errno
import hashlib
from typing import Any, NoReturn

import pytest

pytest.importorskip("zmq")

from swift_loader.order.part import Number
from swift_loader.pipeline.link import Event, Gone, Up
from swift_loader.plan import Plan
from swift_loader.remote.messages import PROTOCOL, Chunk, Hello, MakeFrame
from swift_loader.remote.payloads import Payloads
from swift_loader.remote.session import Session
from swift_loader.remote.versions import here
from swift_loader.transport.messages import SetPlan


def session_of(fork: Any, said: list[Any]) -> Session:
    data = b"a dataset"
    sha256 = hashlib.sha256(data).hexdigest()
    hello = Hello(PROTOCOL, here(), len(data), sha256, 0, 1, 1, 0, 0, 1)
    session = Session(1, hello, Payloads(), 2, fork, said.append, lambda: None)
    session.take(Chunk(0, data))
    return session


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN, errno.ENOMEM])
def test_worker_that_can_not_be_started_now_is_tried_again_later(number: int) -> None:
    tried = 0

    def fork(*_: Any) -> NoReturn:
        nonlocal tried
        tried += 1
        raise OSError(number, "none left")

    said: list[Any] = []
    session = session_of(fork, said)
    for attempt in (1, 2):
        assert session.resize(2) == []
        assert tried == attempt
        assert "none left" in session.wanting
    assert session.state == "starting"
    assert said == []
    session.close()


class Unheard:
    """A link to a worker that takes orders, and of whose start nobody has told."""

    name = "worker 0"
    pid = None

    def __init__(self) -> None:
        self.events: list[Event] = [Up(10, "Numbers")]
        self.made: list[int] = []

    def receive(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def make(self, ticket: int, number: Number, indices: bytes) -> None:
        self.made.append(ticket)

    def set_plan(self, plan_id: int, plan: Plan) -> None:
        """Not looked at."""

    def flush(self) -> None:
        """Nothing is on its way."""

    def wait_closed(self, deadline_s: float) -> None:
        """It is gone."""


def test_orders_of_a_worker_that_ends_before_its_start_was_told_go_to_the_next() -> None:
    links: list[Unheard] = []

    def fork(*_: Any) -> Any:
        links.append(Unheard())
        return links[-1]

    said: list[Any] = []
    session = session_of(fork, said)
    session.resize(1)
    session.receive(session.workers[0])
    session.take(SetPlan(0, Plan(10, 2, 1, False, 0, 0, "balanced")))
    for ticket in (1, 2):
        session.take(MakeFrame(ticket, Number(0, 0, ticket), b""))
    session.dispatch()
    assert links[0].made == [1, 2]
    links[0].events = [Gone("the process that workers are forked from ended", None)]
    session.receive(session.workers[0])
    session.resize(1)
    session.receive(session.workers[0])
    session.dispatch()
    assert links[1].made == [1, 2]
    session.close()
