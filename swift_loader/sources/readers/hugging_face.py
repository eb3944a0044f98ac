"""Streams of Hugging Face's `datasets`, by the shards that they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from swift_loader.errors import refuse
from swift_loader.sources.shards import Shards

__all__ = ["hugging_face"]


def hugging_face(dataset: Any, *, buffer: int = 0) -> Shards:
    """The examples of a `datasets.IterableDataset`, by its own shards (``n_shards``).

    Leave its own ``shuffle`` and ``split_dataset_by_node`` out: the loader deals its shards, and
    shuffles them with ``shuffle=True``. A resumed run lets `datasets` skip what was seen.

    Parameters
    ----------
    dataset:
        ``load_dataset(..., streaming=True)``, or one made with ``to_iterable_dataset()``.
    buffer:
        As `Shards` has it.

    Raises
    ------
    ConfigError
        It is none, or is split by rank already.
    """
    count = getattr(dataset, "num_shards", None)
    if count is None or not hasattr(dataset, "shard") or not hasattr(dataset, "skip"):
        refuse("dataset", dataset, "give a datasets.IterableDataset")
    if getattr(dataset, "_distributed", None) is not None:
        refuse("dataset", dataset, "it is split by rank: give it before split_dataset_by_node")
    return Shards(range(count), _Examples(dataset, count), buffer=buffer)


class _Examples:
    """Opens the shard with a number."""

    def __init__(self, dataset: Any, count: int) -> None:
        self.dataset = dataset
        self.count = count

    def __call__(self, number: int, start: int = 0) -> Iterator[Any]:
        shard = self.dataset.shard(num_shards=self.count, index=number)
        yield from shard.skip(start) if start else shard
