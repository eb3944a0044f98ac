"""What a loader asks of a reading service: the protocol that users' own services follow too.

The loader calls, in this order: `initialize` (or `restore`) once; then for each epoch
`initialize_iteration`, and `finalize_iteration` when it ends or is given up; `finalize` once. A
service may also have `_pause()`, `_resume()`, `_limit(num_batches)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from swift_loader.dataloader2.graph import DataPipe, list_dps, traverse_dps
from swift_loader.dataloader2.random import SeedGenerator

__all__ = [
    "CheckpointableReadingServiceInterface",
    "IterResetFn",
    "LimitFn",
    "ReadingServiceInterface",
    "RunsItsPipes",
    "WorkerInfo",
]

IterResetFn = Callable[[DataPipe], DataPipe]
LimitFn = Callable[[DataPipe, int | None], DataPipe]


@dataclass(frozen=True)
class WorkerInfo:
    """A worker's place: `worker_id` in `[0, num_workers)`. What users' functions are given."""

    num_workers: int
    worker_id: int


class ReadingServiceInterface(ABC):
    """How a graph of pipes is executed. Picklable until `initialize`: the loader copies it."""

    @abstractmethod
    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Take over the graph; return what to iterate. Called once, before the first epoch."""

    def finalize(self) -> None:  # noqa: B027 nothing to give back is the usual case
        """Give everything back. Called at shutdown; calling it again must do no harm."""

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn | None = None
    ) -> IterResetFn | None:
        """Get ready for an epoch whose seeds come from `seed_generator`.

        May return a function that the loader applies to its graph before it iterates it.
        `iter_reset_fn` is what a service before this one returned: apply it or hand it on.
        """
        return iter_reset_fn

    def finalize_iteration(self) -> None:  # noqa: B027
        """The epoch is over, or given up."""

    def __del__(self) -> None:
        self.finalize()


class CheckpointableReadingServiceInterface(ReadingServiceInterface):
    """A reading service whose state is part of the loader's.

    `restores_position`: `restore` goes on in the middle of the epoch by itself. Where it is false
    (the default), the loader passes over the items that were yielded before the state was taken.
    """

    restores_position: bool = False

    @abstractmethod
    def checkpoint(self) -> bytes:
        """The state of the service."""

    @abstractmethod
    def restore(self, datapipe: DataPipe, serialized_state: bytes) -> DataPipe:
        """In place of `initialize`: take over the graph and the state of a service like this."""


class RunsItsPipes:
    """`limit`, `pause`, `resume` and the end of a service whose graph runs in this process.

    The service gives its graph to `_watch` whenever it has changed.
    """

    def _watch(self, datapipe: DataPipe) -> DataPipe:
        self._datapipe: DataPipe | None = datapipe
        # Listed now: a loader may be shut down when the interpreter can't pickle any more.
        self._pipes = list_dps(traverse_dps(datapipe))
        return datapipe

    def finalize(self) -> None:
        """End the threads of the graph's pipes."""
        if self.__dict__.get("_datapipe") is not None:
            _call_where_there(self._pipes, "shutdown")
        self._datapipe = None
        self._pipes = []

    def _pause(self, pause_fn: IterResetFn | None = None) -> IterResetFn | None:
        _call_where_there(self._pipes, "pause")
        return pause_fn

    def _resume(self, resume_fn: IterResetFn | None = None) -> IterResetFn | None:
        _call_where_there(reversed(self._pipes), "resume")
        return resume_fn

    def _limit(self, num_batches: int | None, limit_fn: LimitFn | None = None) -> LimitFn | None:
        return limit_fn  # the loader counts, and pauses


def _call_where_there(pipes: Iterable[DataPipe], method: str) -> None:
    for dp in pipes:
        if callable(getattr(dp, method, None)):
            getattr(dp, method)()
