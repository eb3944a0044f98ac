"""What a consumer's side of the work is told of the loader's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["PipelineOptions"]


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """The options that matter in this folder; see the loader for what they mean."""

    data_queue_size: int
    queue_grows: bool
    message_queue_size: int | None
    max_buffer_size: int
    in_order: bool
    timeout_s: float | None
    on_timeout: Literal["raise", "restart"]
    max_worker_restarts: int
    max_deaths_per_batch: int
    max_bad_samples: int | None
    auto_workers: bool = False
