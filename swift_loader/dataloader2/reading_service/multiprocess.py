"""The graph runs in worker processes."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch.utils.data import IterDataPipe

from swift_loader.dataloader2.graph import (
    DataPipe,
    clone,
    list_dps,
    replace_dp,
    set_datapipes_seed,
    traverse_dps,
)
from swift_loader.dataloader2.random import SeedGenerator
from swift_loader.dataloader2.reading_service.distributed import warn_without_sharding
from swift_loader.dataloader2.reading_service.in_process import InProcessReadingService
from swift_loader.dataloader2.reading_service.interface import (
    IterResetFn,
    ReadingServiceInterface,
    RunsItsPipes,
    WorkerInfo,
)
from swift_loader.dataloader2.split import (
    Placeholder,
    Split,
    length_over_workers,
    split_for_workers,
)
from swift_loader.dataloader2.workers.pipe_workers import PipeWorkers, PipeWorkersPlan
from swift_loader.dataloader2.workers.process import DispatcherParts, WorkerParts
from swift_loader.worker.place import Place

__all__ = ["MultiProcessingReadingService", "PrototypeMultiProcessingReadingService"]

_InitFn = Callable[[DataPipe, WorkerInfo], DataPipe]
_ResetFn = Callable[[DataPipe, WorkerInfo, SeedGenerator], DataPipe]


class WorkersPipe(IterDataPipe[Any]):
    """In the training process: stands for the part of the graph that runs in workers."""

    def __init__(self, workers: PipeWorkers, length: int | None) -> None:
        self._workers = workers
        self._length = length

    def __iter__(self) -> Iterator[Any]:
        yield from self._workers.items()

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("This graph of pipes has no length over its workers")
        return self._length


class MultiProcessingReadingService(RunsItsPipes, ReadingServiceInterface):
    """Runs a copy of the graph in each of `num_workers` processes, and yields their items by turns.

    The copies yield their shards where the graph has a `sharding_filter`: with per-item pipes
    behind it, items come in the order of one process. What comes before a
    `sharding_round_robin_dispatch` runs in one process of its own, which deals its items to the
    workers. What says `is_replicable()` False (`fullsync`, `pin_memory`) stays in the training
    process, with all behind it. Workers start with the first epoch, from a process that is not this
    one's image, and live until the loader is shut down. Tensors and arrays come through shared
    memory.

    `num_workers`: 0 runs the graph in this process, with a warning. `multiprocessing_context`:
    checked to be one of `multiprocessing.get_all_start_methods()`, and of no effect.
    `worker_prefetch_cnt`, `main_prefetch_cnt`: how many items may be made ahead, by each worker and
    altogether. `worker_init_fn(datapipe, WorkerInfo)` is called in a worker once,
    `worker_reset_fn(datapipe, WorkerInfo, SeedGenerator)` at each epoch; both return the pipe to go
    on with. `max_worker_restarts`: how many workers that die (not: raise) are replaced in one
    epoch; a graph must yield the same items for the same seeds then.

    Errors come with their type; the cause is a `WorkerError` with the worker's traceback.
    """

    def __init__(
        self,
        num_workers: int = 0,
        multiprocessing_context: str | None = None,
        worker_prefetch_cnt: int = 10,
        main_prefetch_cnt: int = 10,
        worker_init_fn: _InitFn | None = None,
        worker_reset_fn: _ResetFn | None = None,
        *,
        max_worker_restarts: int = 10,
    ) -> None:
        methods = multiprocessing.get_all_start_methods()
        if multiprocessing_context is not None and multiprocessing_context not in methods:
            raise ValueError(
                f"multiprocessing_context {multiprocessing_context!r} is not one of {methods}"
            )
        for name, value in [
            ("num_workers", num_workers),
            ("worker_prefetch_cnt", worker_prefetch_cnt),
            ("main_prefetch_cnt", main_prefetch_cnt),
            ("max_worker_restarts", max_worker_restarts),
        ]:
            if value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        if num_workers == 0:
            warnings.warn(
                "MultiProcessingReadingService(num_workers=0) runs the graph in this process, like "
                "InProcessReadingService",
                stacklevel=2,
            )
        self.num_workers = num_workers
        self.multiprocessing_context = multiprocessing_context
        self.worker_prefetch_cnt = worker_prefetch_cnt
        self.main_prefetch_cnt = main_prefetch_cnt
        self.worker_init_fn = worker_init_fn
        self.worker_reset_fn = worker_reset_fn
        self.max_worker_restarts = max_worker_restarts
        self._workers: PipeWorkers | None = None
        self._here: InProcessReadingService | None = None

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Cut the graph (in place). Workers are started by the first epoch.

        `AssertionError` where the graph does not have exactly one part that can be copied.
        """
        if self.num_workers == 0:
            self._here = InProcessReadingService(0, self.worker_init_fn, self.worker_reset_fn)
            return self._watch(self._here.initialize(datapipe))
        split = split_for_workers(datapipe)
        if self.num_workers > 1 and split.dispatched is None:
            warn_without_sharding(split.replicated, "worker")
        self._workers = PipeWorkers(self._plan(split))
        length = length_over_workers(split, self.num_workers)
        workers = WorkersPipe(self._workers, length)
        if split.kept is None:
            return self._watch(workers)
        graph = traverse_dps(split.kept)
        (placeholder,) = (dp for dp in list_dps(graph) if isinstance(dp, Placeholder))
        ((datapipe, _),) = replace_dp(graph, placeholder, workers).values()
        return self._watch(datapipe)

    def _plan(self, split: Split) -> PipeWorkersPlan:
        nb_worker = self.num_workers
        nb_ahead = max(1, self.worker_prefetch_cnt - (-self.main_prefetch_cnt // nb_worker))
        worker_parts = WorkerParts(
            split.replicated, nb_worker, nb_ahead, self.worker_init_fn, self.worker_reset_fn
        )
        dispatcher_parts = None
        if split.dispatched is not None:
            dispatcher_parts = DispatcherParts(split.dispatched, nb_worker)
        is_rank = dist.is_available() and dist.is_initialized()
        place = Place(
            consumer_index=dist.get_rank() if is_rank else 0,
            nb_consumer=dist.get_world_size() if is_rank else 1,
            worker_per_consumer=nb_worker,
            seed=0,
            log=None,
        )
        return PipeWorkersPlan(
            nb_worker, nb_ahead, worker_parts, dispatcher_parts, place, self.max_worker_restarts
        )

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn | None = None
    ) -> IterResetFn | None:
        """Let the workers begin the epoch, and apply `iter_reset_fn` there."""
        if self._here is not None:
            return self._here.initialize_iteration(seed_generator, iter_reset_fn)
        assert self._workers is not None, "initialize comes first"
        for dp in self._pipes:  # a thread of the kept part may still take items of the old epoch
            if callable(getattr(dp, "shutdown", None)):
                dp.reset()
        self._workers.begin(seed_generator, iter_reset_fn)
        set_datapipes_seed(self._pipes, clone(seed_generator), distributed_shared=False)
        return None

    def finalize(self) -> None:
        """End all threads and processes."""
        workers, self._workers = self.__dict__.get("_workers"), None
        if workers is not None:
            workers.interrupt()
        super().finalize()
        if workers is not None:
            workers.close()

    def length_of(self, datapipe: DataPipe) -> int:
        """How many items an epoch over `datapipe` yields. `TypeError` where that is not known."""
        if self.num_workers == 0:
            return len(datapipe)
        length = length_over_workers(
            split_for_workers(clone(datapipe)), self.num_workers, whole=True
        )
        if length is None:
            raise TypeError("This graph of pipes has no length over its workers")
        return length


class PrototypeMultiProcessingReadingService(MultiProcessingReadingService):
    """The former name of `MultiProcessingReadingService`; warns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            "PrototypeMultiProcessingReadingService is now MultiProcessingReadingService",
            FutureWarning,
            stacklevel=2,
        )
        super().__init__(*args, **kwargs)
