"""What the books want done; `swift_loader.pipeline.hands` carries it out. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple

from swift_loader.order.part import Number
from swift_loader.pipeline.item import Item
from swift_loader.plan import Plan
from swift_loader.transport.messages import BadSample

__all__ = [
    "Action",
    "Dismiss",
    "Drop",
    "Halt",
    "Kill",
    "Launch",
    "Reap",
    "Recall",
    "Send",
    "Teach",
    "Tell",
]


class Send(NamedTuple):
    """Tell the worker to make a number. `details`: what it must know besides."""

    worker: int
    ticket: int
    number: Number
    details: bytes


@dataclass(frozen=True, slots=True)
class Recall:
    """Tell the worker that nobody wants these any more."""

    worker: int
    tickets: Collection[int]


@dataclass(frozen=True, slots=True)
class Teach:
    """Tell the worker what a plan id means."""

    worker: int
    plan_id: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the worker, but not before `at_s`."""

    worker: int
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reap:
    """The worker ended by itself: free what it leaves."""

    worker: int


@dataclass(frozen=True, slots=True)
class Dismiss:
    """The worker owes nothing: let it end."""

    worker: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End the worker at once; `Gone` comes, with `why` in its story."""

    worker: int
    why: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Nobody wants this batch: free its memory."""

    item: Item


@dataclass(frozen=True, slots=True)
class Halt:
    """Nothing can go on: whoever waits for a batch gets `error`."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Tell:
    """Something happened that metrics and log should have: what `text` says, to a worker."""

    what: Literal["started", "stopped", "restarted", "given up", "more", "fewer", "slow", "bad"]
    worker: int
    text: str = ""
    pid: int | None = None
    bad: tuple[BadSample, ...] = ()


Action = Send | Recall | Teach | Launch | Reap | Dismiss | Kill | Drop | Halt | Tell
