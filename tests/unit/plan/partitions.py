"""What a partition deals out twice, and what it leaves out, by the rules of its tail."""

from __future__ import annotations

from swift_loader.plan.partition import Partition


def nb_padded(partition: Partition) -> int:
    """Places that are dealt out a second time, over all consumers together."""
    if partition.tail != "pad":
        return 0
    return -partition.nb_positions % partition.nb_consumer


def nb_dropped(partition: Partition) -> int:
    """Places that are dealt out to nobody."""
    if partition.tail != "drop":
        return 0
    whole = partition.batch_size * partition.nb_consumer
    return partition.nb_positions - partition.nb_batches(0) * whole
