"""The graph runs in the training process itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swift_loader.dataloader2.graph import DataPipe, set_graph_random_seed
from swift_loader.dataloader2.iter.prefetch import Prefetcher
from swift_loader.dataloader2.random import SeedGenerator
from swift_loader.dataloader2.reading_service.interface import (
    IterResetFn,
    ReadingServiceInterface,
    RunsItsPipes,
    WorkerInfo,
)

__all__ = ["InProcessReadingService"]

_ONLY_WORKER = WorkerInfo(num_workers=1, worker_id=0)


class InProcessReadingService(RunsItsPipes, ReadingServiceInterface):
    """Seeds the graph for each epoch and runs it in this process. For debugging and small data.

    `prefetch_cnt`: how many items a thread has ready ahead, 0 none. `init_fn(datapipe, WorkerInfo)`
    changes the graph once, `reset_fn(datapipe, WorkerInfo, SeedGenerator)` before each epoch; both
    return the pipe to go on with.
    """

    def __init__(
        self,
        prefetch_cnt: int = 0,
        init_fn: Callable[[DataPipe, WorkerInfo], DataPipe] | None = None,
        reset_fn: Callable[[DataPipe, WorkerInfo, SeedGenerator], DataPipe] | None = None,
    ) -> None:
        self.prefetch_cnt = prefetch_cnt
        self.init_fn = init_fn
        self.reset_fn = reset_fn

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Apply `init_fn`."""
        if self.init_fn is not None:
            datapipe = self.init_fn(datapipe, _ONLY_WORKER)
        return self._with_prefetch(datapipe)

    def _with_prefetch(self, datapipe: Any) -> DataPipe:
        datapipe = Prefetcher(datapipe, self.prefetch_cnt) if self.prefetch_cnt > 0 else datapipe
        return self._watch(datapipe)

    def length_of(self, datapipe: DataPipe) -> int:
        """How many items an epoch over `datapipe` yields. `TypeError` where that is not known."""
        return len(datapipe)

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn | None = None
    ) -> IterResetFn | None:
        """Seed the random pipes, and have `iter_reset_fn` and then `reset_fn` applied."""
        assert self._datapipe is not None, "initialize comes first"
        set_graph_random_seed(self._datapipe, seed_generator)
        reset_fn = self.reset_fn
        if reset_fn is None and iter_reset_fn is None:
            return None

        def reset(datapipe: DataPipe) -> DataPipe:
            if self.prefetch_cnt > 0:
                datapipe = datapipe.source_datapipe
            if iter_reset_fn is not None:
                datapipe = iter_reset_fn(datapipe)
            if reset_fn is not None:
                datapipe = reset_fn(datapipe, _ONLY_WORKER, seed_generator)
            return self._with_prefetch(datapipe)

        return reset
