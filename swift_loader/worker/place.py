"""Where a worker stands among all. Without torch, as is all that only starts workers."""

from __future__ import annotations

from dataclasses import dataclass

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
