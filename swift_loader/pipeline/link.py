"""What the pipeline knows of a worker, wherever it runs: a `Link`, and the events that come up it.

Siblings: `swift_loader.pipeline.local` (a child process); remote endpoints and Ray actors bring
their own. A link is used by one receiving thread; `make`, `forget` and `flush` may be called from
any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from swift_loader.order.part import Number
from swift_loader.plan import Plan
from swift_loader.transport.messages import BadSample, ErrorReport, StageTimes

__all__ = [
    "Crashed",
    "Event",
    "Gone",
    "HeldParcel",
    "Link",
    "MadeBatch",
    "NoMore",
    "NotMade",
    "Parcel",
    "Refused",
    "Running",
    "Up",
]


class Parcel(Protocol):
    """An encoded batch where it arrived."""

    nbytes: int

    def open(self) -> tuple[bytes, NDArray[np.uint8]]:
        """``(skeleton, base)`` for the codec; the memory belongs to `base` from now on. Once."""

    def discard(self) -> None:
        """Nobody wants it. Instead of `open`."""


class HeldParcel:
    """A batch in memory of its own, which is freed with its last view."""

    __slots__ = ("_base", "_skeleton", "nbytes")

    def __init__(self, skeleton: bytes, base: NDArray[np.uint8]) -> None:
        self._skeleton = skeleton
        self._base = base
        self.nbytes = base.nbytes

    def open(self) -> tuple[bytes, NDArray[np.uint8]]:
        return self._skeleton, self._base

    def discard(self) -> None:
        """Nothing else is held."""


@dataclass(frozen=True, slots=True)
class Running:
    """The worker's process runs (its dataset is not built yet)."""

    pid: int | None


@dataclass(frozen=True, slots=True)
class Up:
    """The worker takes orders. `nb_samples` as its own dataset says, `lengths` of its sources.

    `capacity`: how many workers stand behind the link. `round_trip_s`: what an order and its
    answer spend on the way, so that the link is given enough orders to cover it.
    """

    nb_samples: int | None
    dataset_name: str
    capacity: int = 1
    round_trip_s: float = 0.0
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The worker can't be had: its dataset failed to build. Retrying would not help."""

    fault: ErrorReport


class MadeBatch(NamedTuple):
    """The answer to an order: the batch."""

    ticket: int
    nb_samples: int
    times: StageTimes
    parcel: Parcel
    bad: tuple[BadSample, ...] = ()
    state: bytes = b""  # where a stream stands after it, if its dataset can tell
    made_at_s: float | None = None  # `time.perf_counter` of this machine, where it shares that


@dataclass(frozen=True, slots=True)
class NotMade:
    """The answer to an order: an error, or None when it was forgotten as asked."""

    ticket: int
    fault: ErrorReport | None


@dataclass(frozen=True, slots=True)
class NoMore:
    """The answer to an order: the worker's shard of the stream has ended before this batch.

    `state`: where the stream stands then, if its dataset can tell.
    """

    ticket: int
    state: bytes = b""


@dataclass(frozen=True, slots=True)
class Gone:
    """The worker ended by itself. `story` says how, for a reader; `ticket` is what it was at.

    `suspects`: where that can't be told, the tickets of which it was at one. Each is made alone
    from then on, so that the next end can be told.
    `replace`: a link to be launched in its place counts as a restart; or does not, because the
    worker itself may be well (a connection was lost); or is to be tried later, as there is no room
    for it now (no descriptors, processes or memory); or there is no use in another one.
    `outside`: it was killed by SIGKILL, which another process or the kernel sends.
    """

    story: str
    ticket: int | None
    sample: int | None = None
    replace: Literal["counted", "uncounted", "later", "never"] = "counted"
    suspects: frozenset[int] = frozenset()
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Crashed:
    """One of the workers behind the link died while it made `ticket`; the link goes on."""

    story: str
    ticket: int | None
    sample: int | None = None


Event = Running | Up | Refused | MadeBatch | NotMade | NoMore | Crashed | Gone


class Link(Protocol):
    """One worker, or an endpoint with several behind it."""

    worker: int
    name: str

    @property
    def due_s(self) -> float | None:
        """When (by `time.monotonic`) `receive` has something to do although nothing is readable;
        infinite: not as things stand. None: it never has, whatever happens.
        """

    def filenos(self) -> Sequence[int]:
        """Descriptors that become readable when `receive` has something to do."""

    def set_plan(self, plan_id: int, plan: Plan) -> None:
        """Numbers with this `plan_id` mean this plan. Before any `make` with it."""

    def make(self, ticket: int, number: Number, indices: bytes) -> None:
        """Queue an order; `flush` sends it."""

    def forget(self, tickets: Iterable[int]) -> None:
        """Queue: answer these with `NotMade(ticket, None)` unless they are made."""

    def flush(self) -> None:
        """Send what is queued, without waiting."""

    def receive(self) -> list[Event]:
        """What has come in, without waiting. After `Gone` or `Refused` nothing comes."""

    def stack(self) -> str:
        """Where the worker is just now: its Python stacks, or why they can't be had."""

    def kill(self, why: str) -> None:
        """End the worker at once; `Gone` comes as if it had died, with `why` as its story."""

    def close(self) -> None:
        """Let go of the worker; returns at once. `wait_closed` waits."""

    def wait_closed(self, deadline_s: float) -> None:
        """Wait until the worker is gone, at most until `time.monotonic()` is `deadline_s`."""
