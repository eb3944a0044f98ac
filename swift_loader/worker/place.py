"""Where a worker stands among all. Without torch, as is all that only starts workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from swift_loader.telemetry.log import LogConfig

__all__ = ["Place"]


@dataclass(frozen=True)
class Place:
    """Where among all workers; small, differs from consumer to consumer."""

    consumer_index: int
    nb_consumer: int
    worker_per_consumer: int
    seed: int
    log: LogConfig | None
    affinity: tuple[tuple[int, ...], ...] = ()  # CPUs, dealt round the workers; empty: any
    stream_split: Literal["auto", "workers", "ranks"] = "auto"
    group: tuple[int, int] | None = None  # rank and size of the training process's process group
    worker_id: int | None = None  # in [0, worker_per_consumer), where it isn't the worker's number
    trial: bool = False  # makes one batch to see whether that can be; nothing is kept of it
    watches_draws: bool = False  # refuses a data set that draws random numbers where it is kept
    split_why: str = ""  # where the training processes have decided it; empty: an option
    split_in_doubt: bool = False

    def id_of(self, worker: int) -> int:
        """What worker info gives as the id of a worker."""
        return worker if self.worker_id is None else self.worker_id
