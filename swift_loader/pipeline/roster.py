"""Which workers run, and how many should. Pure.

A worker has one of these states, and changes as the table says:

| state | means | may become |
|---|---|---|
| `OFF` | does not run | `STARTING` |
| `STARTING` | was launched, takes no orders yet | `UP`, `STARTING` (again), `GIVEN_UP`, `OFF` |
| `UP` | takes orders | `STARTING` (it died), `LEAVING`, `GIVEN_UP`, `OFF` (the run has ended) |
| `LEAVING` | gets no more orders, owes answers | `OFF` |
| `GIVEN_UP` | is not replaced any more | |
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Final

from swift_loader.pipeline.scaling import Scaling

__all__ = ["AFTER", "Roster", "WorkerState"]


class WorkerState(Enum):
    """See the module's text."""

    OFF, STARTING, UP, LEAVING, GIVEN_UP = range(5)


_S = WorkerState
AFTER: Final = {
    _S.OFF: {_S.STARTING},
    _S.STARTING: {_S.UP, _S.STARTING, _S.GIVEN_UP, _S.OFF},
    _S.UP: {_S.STARTING, _S.LEAVING, _S.GIVEN_UP, _S.OFF},
    _S.LEAVING: {_S.OFF},
    _S.GIVEN_UP: set[WorkerState](),
}


class Roster:
    """The workers that may run.

    `awaited`: those of them that are elsewhere. `auto`: begin with one of the others, and take more
    by need.
    """

    def __init__(self, workers: Collection[int], awaited: Collection[int], *, auto: bool) -> None:
        self._states = dict.fromkeys(workers, _S.OFF)
        self._awaited = frozenset(awaited)
        self.scaling = Scaling(len(workers) - len(awaited)) if auto else None
        self.launched_at_s = 0.0  # the latest
        self.why_given_up: dict[int, str] = {}

    def __getitem__(self, worker: int) -> WorkerState:
        return self._states[worker]

    def is_elsewhere(self, worker: int) -> bool:
        return worker in self._awaited

    def become(self, worker: int, state: WorkerState) -> None:
        before = self._states[worker]
        assert state in AFTER[before], f"worker {worker}: {before.name} to {state.name}"
        self._states[worker] = state

    def starts(self, worker: int, now_s: float) -> None:
        self.become(worker, _S.STARTING)
        self.launched_at_s = now_s

    def gives_up(self, worker: int, why: str) -> None:
        self.become(worker, _S.GIVEN_UP)
        self.why_given_up[worker] = why

    def first(self) -> list[int]:
        """The workers to begin with."""
        return sorted({0, *self._awaited} if self.scaling is not None else self._states)

    def taught(self) -> list[int]:
        """Those that know plans."""
        return [w for w, state in self._states.items() if state in (_S.UP, _S.LEAVING)]

    @property
    def ready(self) -> bool:
        """Whether one takes orders, and each of those elsewhere does, or was given up."""
        states = self._states
        settled = all(states[w] in (_S.UP, _S.GIVEN_UP) for w in self._awaited)
        return settled and _S.UP in states.values()

    @property
    def exhausted(self) -> bool:
        """Whether all were given up."""
        return len(self.why_given_up) == len(self._states)

    def change(self, waited_s: float, now_s: float) -> tuple[int, str] | None:
        """The loop waited so long for a batch: the worker to start, or to send away; and why."""
        if self.scaling is None:
            return None
        works = (_S.STARTING, _S.UP)
        local = [w for w, s in self._states.items() if s in works and w not in self._awaited]
        step = self.scaling.delivered(waited_s, now_s, len(local))
        if step > 0:
            spare = next((w for w, state in self._states.items() if state is _S.OFF), None)
            why = f"one worker more, {len(local) + 1} now: the training loop waited for data"
            return None if spare is None else (spare, why)
        if step < 0 and self._states[max(local)] is _S.UP:
            why = f"one worker less, {len(local) - 1} now: the others are not busy"
            return max(local), why
        return None
