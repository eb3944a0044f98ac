"""Workers that Ray places: `RayWorkers`, and the link to one of them. Role: the training process.

Calls the methods of `swift_loader.remote.ray_worker.RayWorker`. Ray tells of an answer on a thread
of its own, which only appends it to a deque and stirs the link's socket.

Batches come through Ray's object store: where the worker is on this machine, the training process
maps the very memory that the worker's Ray has written; from another one Ray fetches it first.
A worker that dies, with its node or alone, is asked for anew, and Ray says where it goes.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swift_loader.errors import ConfigError
from swift_loader.order.part import Number
from swift_loader.pipeline.elsewhere import Brief
from swift_loader.pipeline.link import (
    Event,
    Gone,
    HeldParcel,
    Link,
    MadeBatch,
    NotMade,
    Refused,
    Running,
    Up,
)
from swift_loader.plan import Plan
from swift_loader.transport.memory import map_shared
from swift_loader.transport.messages import ErrorReport, Make
from swift_loader.transport.slots import skeleton_of
from swift_loader.transport.wakeup import Wakeup
from swift_loader.worker.settings import read_settings

__all__ = ["RayWorkers"]

_CONTROL = {"control": 1}
_WHERE_S = 3.0
_PREPARE = -1  # in the place of a ticket


@dataclass(frozen=True)
class RayWorkers:
    """Workers that are Ray actors, for `SwiftLoader(remote_workers=...)`.

    Ray is used as it is initialised; where it is not, ``ray.init()`` is called, which joins the
    cluster that ``RAY_ADDRESS`` names or starts one on this machine. Inside Ray Train each
    training worker is a consumer, as anywhere.

    Parameters
    ----------
    num_workers:
        How many, for each consumer.
    num_cpus, resources, scheduling_strategy, runtime_env:
        What Ray asks for an actor, with Ray's meaning.
    options:
        Further options of a Ray actor.
    """

    num_workers: int
    num_cpus: float = 1
    resources: dict[str, float] | None = None
    scheduling_strategy: Any = None
    runtime_env: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.num_workers, bool) or not isinstance(self.num_workers, int):
            raise ConfigError(f"num_workers={self.num_workers!r}: give a whole number")
        if self.num_workers < 1:
            raise ConfigError(f"num_workers={self.num_workers}: give 1 or more")

    @property
    def nb_links(self) -> int:
        """How many workers each consumer gets."""
        return self.num_workers

    def launchers(self, brief: Brief) -> Sequence[Callable[[int], Link]]:
        """See `swift_loader.pipeline.elsewhere.RemoteWorkers`. Raises `ConfigError` without Ray."""
        ray = _import_ray()
        if not ray.is_initialized():
            ray.init()
        size = os.fstat(brief.payload_fd).st_size
        with map_shared(brief.payload_fd, size) as region:
            # once for all actors; Ray maps it on each node
            payload = ray.put(np.frombuffer(region, np.uint8).copy())
        return [lambda worker: RayLink(worker, self, brief, payload)] * self.num_workers

    def actor(self) -> Any:
        """A new one, on its way."""
        ray = _import_ray()
        from swift_loader.remote.ray_worker import RayWorker

        wanted = {
            "num_cpus": self.num_cpus,
            "resources": self.resources,
            "scheduling_strategy": self.scheduling_strategy,
            "runtime_env": self.runtime_env,
            "concurrency_groups": _CONTROL,
            "max_restarts": 0,  # a new actor is asked for instead: it has no dataset yet either
            **self.options,
        }
        kind = ray.remote(**{k: v for k, v in wanted.items() if v is not None})(RayWorker)
        return kind.remote()


class RayLink:
    """See `swift_loader.pipeline.link.Link`."""

    due_s = None

    def __init__(self, worker: int, workers: RayWorkers, brief: Brief, payload: Any) -> None:
        self.worker = worker
        self.name = f"Ray worker {worker}"
        self._ray = _import_ray()
        self._answers: deque[tuple[int, Any, BaseException | None]] = deque()
        self._wakeup = Wakeup()
        self._refs: dict[int, Any] = {}  # unanswered, by ticket, in the order of the orders
        self._over = False
        self._why = ""
        self._actor = workers.actor()
        # Ray's workers count themselves. Their environment, folder and CPUs are Ray's affair.
        place = replace(
            brief.place,
            worker_per_consumer=workers.num_workers,
            worker_id=worker - brief.first_worker,
            log=None,
            affinity=(),
        )
        settings = read_settings(of_machine=False)
        self._watch(_PREPARE, self._actor.prepare.remote(payload, place, worker, settings))

    def _watch(self, ticket: int, ref: Any) -> None:
        self._refs[ticket] = ref
        future = ref.future()
        future.add_done_callback(lambda done: self._on_answer(ticket, done))

    def _on_answer(self, ticket: int, done: Any) -> None:
        """On a thread of Ray's."""
        error = done.exception()
        self._answers.append((ticket, None if error else done.result(), error))
        self._wakeup.wake()

    def filenos(self) -> Sequence[int]:
        return [] if self._over else [self._wakeup.fileno()]

    # ---- down

    def set_plan(self, plan_id: int, plan: Plan) -> None:
        self._actor.set_plan.remote(plan_id, plan)

    def make(self, ticket: int, number: Number, indices: bytes) -> None:
        self._watch(ticket, self._actor.make.remote(Make(ticket, number, 0, indices)))

    def forget(self, tickets: Iterable[int]) -> None:
        # Not `ray.cancel`: a call that it stops before Ray has sent it leaves a gap in the actor's
        # sequence, and the actor waits 30 s for that call before it takes another one.
        unanswered = frozenset(ticket for ticket in tickets if ticket in self._refs)
        if unanswered:
            self._actor.forget.options(concurrency_group="control").remote(unanswered)

    def flush(self) -> None:
        """Nothing is held back: Ray takes a call at once."""

    # ---- up

    def receive(self) -> list[Event]:
        self._wakeup.clear()
        events: list[Event] = []
        while self._answers and not self._over:
            ticket, answer, error = self._answers.popleft()
            self._refs.pop(ticket, None)
            if error is not None:
                self._on_error(ticket, error, events)
            elif ticket == _PREPARE:
                self._on_prepared(answer, events)
            elif answer is None or isinstance(answer, ErrorReport):
                events.append(NotMade(ticket, answer))
            else:
                made, data = answer
                skeleton = skeleton_of(data, made.skeleton, made.skeleton_bytes)
                parcel = HeldParcel(skeleton, _writable(data))  # it is mapped here
                events.append(MadeBatch(ticket, made.nb_samples, made.times, parcel, made.bad))
        return events

    def _on_prepared(self, answer: Any, events: list[Event]) -> None:
        events.append(Running(None))
        if isinstance(answer, ErrorReport):
            self._over = True
            events.append(Refused(answer))
        else:
            events.append(Up(*answer))

    def _on_error(self, ticket: int, error: BaseException, events: list[Event]) -> None:
        self._over = True
        story = f"{self.name} {self._why or f'ended: {str(error).splitlines()[0]}'}"
        unanswered = frozenset({ticket, *self._refs} - {_PREPARE})
        if self._why or len(unanswered) < 2:  # calls are made in order: it hung in the first
            events.append(Gone(story, min(unanswered, default=None)))
            return
        # What it had answered last may have died with it, so it was not surely in the first.
        story += f". It was making one of {len(unanswered)} batches; they are made one by one now"
        events.append(Gone(story, None, suspects=unanswered))

    # ---- supervision

    def stack(self) -> str:
        where = self._actor.where.options(concurrency_group="control").remote()
        try:
            told: str = self._ray.get(where, timeout=_WHERE_S)
        except self._ray.exceptions.RayError as error:
            return f"it did not say where it is ({type(error).__name__})"
        return told

    def kill(self, why: str) -> None:
        self._why = why
        self._ray.kill(self._actor)

    def close(self) -> None:
        self._over = True
        if self._ray.is_initialized():  # or all is gone with the cluster
            self._ray.kill(self._actor)

    def wait_closed(self, deadline_s: float) -> None:
        self._over = True
        self._wakeup.close()
        self._refs.clear()


def _writable(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The same memory as an array that may be written.

    Ray shows objects read-only because others may read them; nobody but us reads this one, and
    tensors over it are the user's to change, as those of any worker are.
    """
    if not data.nbytes:
        return np.empty(0, np.uint8)
    memory = (ctypes.c_uint8 * data.nbytes).from_address(data.ctypes.data)
    memory.owner = data  # type: ignore[attr-defined]  # keeps the object where it is
    return np.frombuffer(memoryview(memory).cast("B"), np.uint8)


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"RayWorkers needs Ray ({error}): pip install 'swift-loader[ray]'"
        ) from error
    return ray
