"""What a worker is told at its birth of the user's things; where it stands is its `Place`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from swift_loader.batch.fetch import OnError

__all__ = ["Recipe", "build_dataset", "given"]


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


def build_dataset(recipe: Recipe) -> tuple[Any, int | None]:
    """The dataset and its length, None for a stream.

    Raises what the constructor or `len` raises, `TypeError` for what is no dataset.
    """
    dataset = recipe.dataset_class(**recipe.dataset_kwargs)
    by_index = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
    if by_index and hasattr(dataset, "__len__") and not isinstance(dataset, IterableDataset):
        return dataset, len(dataset)
    if not hasattr(dataset, "__iter__"):
        raise TypeError(
            f"a {type(dataset).__name__} is no dataset: it needs __getitem__ and __len__, or "
            "__iter__ for a stream"
        )
    return dataset, None


def given(dataset: Any) -> Any:
    """The `dataset_class` of a dataset that exists already."""
    return dataset
