"""Each rank of a distributed run yields its own shard, and all ranks equally many items."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.utils.data.graph_settings import apply_sharding

from swift_loader.dataloader2.graph import (
    DataPipe,
    clone,
    is_sharding,
    list_dps,
    set_graph_random_seed,
    traverse_dps,
)
from swift_loader.dataloader2.iter.agreement import FullSync
from swift_loader.dataloader2.iter.sharding import SHARDING_PRIORITIES
from swift_loader.dataloader2.random import SeedGenerator, dist_share_seed
from swift_loader.dataloader2.reading_service.interface import (
    IterResetFn,
    ReadingServiceInterface,
    RunsItsPipes,
)

__all__ = ["DistributedReadingService", "warn_without_sharding"]

_FULLSYNC_NAMES = {"FullSync", "FullSyncIterDataPipe"}


class DistributedReadingService(RunsItsPipes, ReadingServiceInterface):
    """Shards the graph over the ranks of `torch.distributed`, with the same seeds on all of them.

    Shards at `sharding_filter` and appends `fullsync(timeout)` unless the graph ends in one, so
    that all ranks yield as many items as the shortest shard has. For each epoch rank 0's seed is
    taken. Its calls use gloo groups of their own. `timeout`: in seconds, how long ranks wait for
    each other. All ranks must begin every epoch. `RuntimeError` where there is no process group
    yet.
    """

    def __init__(self, timeout: float = 1800) -> None:
        if not dist.is_available():
            raise RuntimeError("Torch Distributed is required to be available")
        self._timeout = timeout
        self._group: dist.ProcessGroup | None = None
        self._rank = 0

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        """Make the group, shard the graph, append `fullsync`. A collective call."""
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "DistributedReadingService needs torch.distributed.init_process_group first"
            )
        nb_rank, self._rank = dist.get_world_size(), dist.get_rank()
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._timeout))
        if nb_rank > 1:
            warn_without_sharding(datapipe, "rank")
        apply_sharding(datapipe, nb_rank, self._rank, SHARDING_PRIORITIES.DISTRIBUTED)
        if type(datapipe).__name__ not in _FULLSYNC_NAMES:
            last: Any = datapipe
            datapipe = FullSync(last, self._timeout)
        return self._watch(datapipe)

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn | None = None
    ) -> IterResetFn | None:
        """Take rank 0's seed, make the generator this rank's, seed the graph. A collective call."""
        assert self._datapipe is not None, "initialize comes first"
        shared = dist_share_seed(seed_generator.generate_shared_seed(), self._group)
        seed_generator.seed(shared)
        seed_generator.spawn(self._rank, inplace=True)
        # By a copy: a service after this one seeds its workers' graphs from the same place.
        set_graph_random_seed(self._datapipe, clone(seed_generator))
        return iter_reset_fn

    def finalize(self) -> None:
        """End `fullsync`'s thread and give the groups back."""
        super().finalize()
        group, self._group = self.__dict__.get("_group"), None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)


def warn_without_sharding(datapipe: DataPipe, what: str) -> None:
    """Warn that each `what` (rank, worker) yields everything, where nothing shards the graph."""
    if not any(is_sharding(dp) for dp in list_dps(traverse_dps(datapipe))):
        warnings.warn(
            f"No pipe of this graph shards it, so every {what} yields all items. Put "
            "`.sharding_filter()` after the shuffle and before the costly pipes: "
            "`dp.shuffle().sharding_filter().map(fn)`.",
            UserWarning,
            stacklevel=3,
        )
