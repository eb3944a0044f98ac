"""The training loop's stand-in: it copies every leaf of each batch into memory allocated before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def leaves(batch: Any) -> Iterator[Any]:
    """The tensors and arrays of a batch, in the order in which they lie in it."""
    if isinstance(batch, dict):
        for value in batch.values():
            yield from leaves(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from leaves(value)
    else:
        yield batch


def nb_bytes(batch: Any) -> int:
    """Bytes of all leaves together."""
    return sum(int(leaf.nbytes) for leaf in leaves(batch))


def _copier(leaf: Any) -> Callable[[Any], object]:
    """What copies a leaf like this one into memory of its own, already touched."""
    if isinstance(leaf, np.ndarray):
        array = np.ones_like(leaf)
        return lambda source: np.copyto(array, source)
    tensor = leaf.clone()
    return lambda source: tensor.copy_(source)


class Device:
    """Where batches go. Made from the first batch; all later ones must have its shapes."""

    def __init__(self, first_batch: Any) -> None:
        self._copiers = [_copier(leaf) for leaf in leaves(first_batch)]

    def take(self, batch: Any) -> None:
        """Copy every leaf of `batch`."""
        for copy, leaf in zip(self._copiers, leaves(batch), strict=True):
            copy(leaf)
