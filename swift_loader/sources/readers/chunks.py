"""LitData's chunks, by litdata: a chunk is a shard that can seek."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from swift_loader.errors import refuse
from swift_loader.sources.shards import Shards

__all__ = ["litdata"]


def litdata(dataset: Any, *, buffer: int = 0) -> Shards:
    """The items of a `litdata.StreamingDataset`, by its chunks.

    Litdata finds, downloads and decodes the chunks. The loader deals them out, and shuffles them
    with ``shuffle=True``: leave `shuffle` out there. Needs ``litdata``.

    Parameters
    ----------
    dataset:
        ``litdata.StreamingDataset(folder or address, ...)``, with any other options.
    buffer:
        As `Shards` has it.

    Raises
    ------
    ConfigError
        It is none, or shuffles by itself.
    """
    if not hasattr(dataset, "get_len") or not hasattr(dataset, "shuffler"):
        refuse("dataset", dataset, "give a litdata.StreamingDataset")
    if getattr(dataset, "shuffle", False):
        refuse("dataset", dataset, "it shuffles by itself: leave shuffle out there, and give the "
               "loader shuffle=True")  # fmt: skip
    dataset.get_len(1, 1)  # reads the index
    intervals = dataset.shuffler.cache.get_chunk_intervals()
    spans = [(one.roi_start_idx, one.roi_end_idx) for one in intervals]
    return Shards(spans, _Items(dataset), buffer=buffer)


class _Items:
    """Opens the items ``(first, behind the last)`` of a chunk."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, span: tuple[int, int], start: int = 0) -> Iterator[Any]:
        first, end = span
        for index in range(first + start, end):
            yield self.dataset[index]
