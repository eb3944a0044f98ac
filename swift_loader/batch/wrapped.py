"""The data sets below torch's own wrappers: `Subset`, `ConcatDataset`, `ChainDataset`.

These wrappers have none of the methods that a loader looks for, and the data sets below may have
them: `set_epoch`, or a ``__getitem__`` that is a coroutine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import ChainDataset, ConcatDataset, Subset

__all__ = ["listeners_of", "with_wrapped"]


def with_wrapped(dataset: Any) -> Iterator[Any]:
    """`dataset` itself, and all data sets that it wraps, at any depth."""
    yield dataset
    if isinstance(dataset, Subset):
        yield from with_wrapped(dataset.dataset)
    elif isinstance(dataset, (ConcatDataset, ChainDataset)):
        for one in dataset.datasets:
            yield from with_wrapped(one)


def listeners_of(dataset: Any) -> list[Any]:
    """What has a ``set_epoch``: `dataset`, those that it wraps, their ``transform``. Each once."""
    found: list[Any] = []
    for part in with_wrapped(dataset):
        for one in (part, getattr(part, "transform", None)):
            if callable(getattr(one, "set_epoch", None)) and not any(one is two for two in found):
                found.append(one)
    return found
