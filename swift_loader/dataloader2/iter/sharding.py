"""Where a graph is cut among workers, beside torch's `sharding_filter`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from swift_loader.dataloader2.registry import functional_datapipe

__all__ = ["SHARDING_PRIORITIES", "ShardingRoundRobinDispatcher", "shard_by_batch"]

T_co = TypeVar("T_co", covariant=True)


@functional_datapipe("sharding_round_robin_dispatch")
class ShardingRoundRobinDispatcher(IterDataPipe[T_co]):
    """Marks what is before it to be run once for all workers (`.sharding_round_robin_dispatch`).

    Under a reading service with workers, one dispatching process iterates the part of the graph
    before it and deals its items to the workers by turns; without workers it passes items through.
    The only `sharding_group_filter` is `SHARDING_PRIORITIES.MULTIPROCESSING`, which must be given
    (`NotImplementedError`). Put a `sharding_filter` before it to share out among ranks.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[T_co],
        sharding_group_filter: SHARDING_PRIORITIES | None = None,
    ) -> None:
        if sharding_group_filter is not SHARDING_PRIORITIES.MULTIPROCESSING:
            raise NotImplementedError(
                "sharding_round_robin_dispatch supports SHARDING_PRIORITIES.MULTIPROCESSING only, "
                f"got {sharding_group_filter}"
            )
        self.source_datapipe = source_datapipe
        self.sharding_group_filter = sharding_group_filter

    def __iter__(self) -> Iterator[T_co]:
        yield from self.source_datapipe

    def __len__(self) -> int:
        return len(self.source_datapipe)


@functional_datapipe("shard_by_batch")
def shard_by_batch(source_datapipe: IterDataPipe[T_co], batch_size: int) -> IterDataPipe[T_co]:
    """`sharding_filter` in blocks of `batch_size`, so that batches are not cut (`.shard_by_batch`).

    Where `batch(8)` comes after `sharding_filter`, which items share a batch depends on how many
    workers there are. `shard_by_batch(8)` in its place makes every batch what it is without
    workers, and leaves the order of the batches as it is.
    """
    pipe: Any = source_datapipe
    sharded: IterDataPipe[T_co] = pipe.batch(batch_size).sharding_filter().unbatch()
    return sharded
