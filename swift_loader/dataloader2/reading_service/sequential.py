"""Several reading services, one after the other."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

from swift_loader.dataloader2.graph import DataPipe
from swift_loader.dataloader2.random import SeedGenerator
from swift_loader.dataloader2.reading_service.interface import (
    CheckpointableReadingServiceInterface,
    IterResetFn,
    LimitFn,
    ReadingServiceInterface,
)

__all__ = ["SequentialReadingService"]


class SequentialReadingService(CheckpointableReadingServiceInterface):
    """Lets each of `reading_services` work on what the one before made of the graph.

    They are initialized and begin an epoch in the given order, and finish in the reverse one. With
    `DistributedReadingService` first and `MultiProcessingReadingService` second, the shards of all
    workers of all ranks are disjoint and complete. The state is a list of theirs; one that has none
    starts anew, with a warning.
    """

    def __init__(self, *reading_services: ReadingServiceInterface) -> None:
        self.reading_services = list(reading_services)

    @property
    def restores_position(self) -> bool:  # type: ignore[override]
        """True where one of the services goes on in the middle of an epoch by itself."""
        return any(
            getattr(service, "restores_position", False) for service in self.reading_services
        )

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """In the given order."""
        for service in self.reading_services:
            datapipe = service.initialize(datapipe)
        return datapipe

    def finalize(self) -> None:
        """In the reverse order."""
        for service in reversed(self.__dict__.get("reading_services", [])):
            service.finalize()

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn | None = None
    ) -> IterResetFn | None:
        """In the given order, each with what the one before returned."""
        for service in self.reading_services:
            iter_reset_fn = service.initialize_iteration(seed_generator, iter_reset_fn)
        return iter_reset_fn

    def finalize_iteration(self) -> None:
        """In the reverse order."""
        for service in reversed(self.reading_services):
            service.finalize_iteration()

    def checkpoint(self) -> bytes:
        """The pickled list of the services' states; `b""`, with a warning, for those without."""
        states = []
        for service in self.reading_services:
            if isinstance(service, CheckpointableReadingServiceInterface):
                states.append(service.checkpoint())
            else:
                warnings.warn(f"{type(service).__name__} has no state to save", stacklevel=2)
                states.append(b"")
        return pickle.dumps(states)

    def restore(self, datapipe: DataPipe, serialized_state: bytes) -> DataPipe:
        """In the given order; a service without state is initialized."""
        states = pickle.loads(serialized_state)
        for service, state in zip(self.reading_services, states, strict=True):
            if isinstance(service, CheckpointableReadingServiceInterface):
                datapipe = service.restore(datapipe, state)
            else:
                warnings.warn(f"{type(service).__name__} has no state to restore", stacklevel=2)
                datapipe = service.initialize(datapipe)
        return datapipe

    def _pause(self, pause_fn: IterResetFn | None = None) -> IterResetFn | None:
        for method in self._methods("_pause"):
            pause_fn = method(pause_fn)
        return pause_fn

    def _resume(self, resume_fn: IterResetFn | None = None) -> IterResetFn | None:
        for method in self._methods("_resume"):
            resume_fn = method(resume_fn)
        return resume_fn

    def _limit(
        self,
        num_batches: int | None,
        limit_fn: LimitFn | None = None,
    ) -> LimitFn | None:
        for method in self._methods("_limit"):
            limit_fn = method(num_batches, limit_fn)
        return limit_fn

    def _methods(self, name: str) -> list[Callable[..., Any]]:
        return [
            getattr(service, name) for service in self.reading_services if hasattr(service, name)
        ]
