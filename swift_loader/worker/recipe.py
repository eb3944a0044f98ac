"""What a worker is told at its birth: the user's things, and its place among all workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from swift_loader.batch.fetch import OnError
from swift_loader.telemetry.log import LogConfig

__all__ = ["Place", "Recipe", "build_dataset", "given"]


@dataclass(frozen=True)
class Recipe:
    """All of the user's that a worker needs; serialized once, the same for every worker."""

    dataset_class: Callable[..., Any]
    dataset_kwargs: dict[str, Any]
    collate_fn: Callable[[list[Any]], Any] | None
    batch_encoder: Callable[[Any], bytes] | None
    worker_init_fn: Callable[[int], None] | None
    on_error: OnError
    threads_per_worker: int


@dataclass(frozen=True)
class Place:
    """Where among all workers; small, differs from consumer to consumer."""

    consumer_index: int
    nb_consumer: int
    worker_per_consumer: int
    seed: int
    log: LogConfig | None
    affinity: tuple[tuple[int, ...], ...] = ()  # CPUs, dealt round the workers; empty: any


def build_dataset(recipe: Recipe) -> tuple[Any, int]:
    """The dataset and its length. Raises what the constructor or `len` raises."""
    dataset = recipe.dataset_class(**recipe.dataset_kwargs)
    return dataset, len(dataset)


def given(dataset: Any) -> Any:
    """The `dataset_class` of a dataset that exists already."""
    return dataset
