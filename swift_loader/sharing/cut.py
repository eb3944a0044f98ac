"""Cutting a stream of batches anew, into batches of another size. Pure.

Tensors and arrays whose first dimension counts the samples are cut along it; so are lists and
tuples with one plain element a sample (strings, numbers, or whole targets). Everything else (a
scalar, a name) is the same in each piece. A piece within one batch is a view; only across the seam
between two batches is anything copied.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swift_loader.errors import BatchError

__all__ = ["Cutter", "cut", "join", "nb_samples_of"]


class Cutter:
    """Takes batches of any size, gives batches of `batch_size`; the last of an epoch is shorter."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._waiting: deque[tuple[Any, int, int, int]] = deque()  # batch, samples, start, stop
        self._nb_waiting = 0

    def put(self, batch: Any) -> None:
        """Take a batch in. Raises `BatchError` where its samples can't be counted."""
        count = nb_samples_of(batch)
        if count:
            self._waiting.append((batch, count, 0, count))
            self._nb_waiting += count

    @property
    def ready(self) -> bool:
        """Whether a full batch can be taken."""
        return self._nb_waiting >= self._batch_size

    def take(self) -> Any:
        """A full batch, or at the end of an epoch what is left; None when nothing is."""
        wanted = min(self._batch_size, self._nb_waiting)
        if not wanted:
            return None
        self._nb_waiting -= wanted
        pieces: list[tuple[Any, int]] = []
        while wanted:
            batch, count, start, stop = self._waiting.popleft()
            end = min(stop, start + wanted)
            pieces.append((cut(batch, count, start, end), end - start))
            wanted -= end - start
            if end < stop:
                self._waiting.appendleft((batch, count, end, stop))
        return pieces[0][0] if len(pieces) == 1 else join(pieces)

    def clear(self) -> None:
        """Forget what was not taken."""
        self._waiting.clear()
        self._nb_waiting = 0


def nb_samples_of(batch: Any) -> int:
    """The number of samples of a batch: the first dimension of its first tensor or array.

    Raises `BatchError` when there is none.
    """
    for leaf in _leaves(batch):
        return int(leaf.shape[0])
    if isinstance(batch, (list, tuple)):
        return len(batch)
    raise BatchError(
        f"a batch of type {type(batch).__name__} holds no tensor or array with a first dimension, "
        "so its samples can't be counted and it can't be cut: leave out batch_size"
    )


def cut(batch: Any, count: int, start: int, stop: int) -> Any:
    """Samples ``[start, stop)`` of a batch of `count` samples, as views."""
    if start == 0 and stop == count:
        return batch

    def leaf(values: list[Any]) -> Any:
        return values[0][start:stop]

    return _map([batch], [count], leaf)


def join(pieces: Sequence[tuple[Any, int]]) -> Any:
    """One batch of several, each given with its number of samples. Copies."""

    def leaf(values: list[Any]) -> Any:
        first = values[0]
        if isinstance(first, Tensor):
            return torch.cat(values)
        if isinstance(first, np.ndarray):
            return np.concatenate(values)
        if isinstance(first, (list, tuple)):
            return type(first)(item for value in values for item in value)
        raise BatchError(f"batches can't be joined: they hold {type(first).__name__}")

    return _map([batch for batch, _ in pieces], [count for _, count in pieces], leaf)


def _leaves(value: Any) -> Iterator[Any]:
    """Tensors and arrays that have a first dimension, in the order in which they lie."""
    if isinstance(value, (Tensor, np.ndarray)):
        if value.ndim:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name))


def _map(values: list[Any], counts: list[int], leaf: Callable[[list[Any]], Any]) -> Any:
    """Rebuild the nesting that `values` share, with `leaf` of what has an element a sample."""
    first = values[0]
    if isinstance(first, (Tensor, np.ndarray)):
        whole = all(v.ndim and v.shape[0] == n for v, n in zip(values, counts, strict=True))
        return leaf(values) if whole else first
    if isinstance(first, Mapping):
        mapped = {key: _map([v[key] for v in values], counts, leaf) for key in first}
        return mapped if type(first) is dict else _alike(first, mapped)
    if isinstance(first, (list, tuple)):
        if all(_is_per_sample(v, n) for v, n in zip(values, counts, strict=True)):
            return leaf(values)
        items = [_map(list(column), counts, leaf) for column in zip(*values, strict=True)]
        return first._make(items) if hasattr(first, "_make") else type(first)(items)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        return dataclasses.replace(
            first,
            **{
                f.name: _map([getattr(v, f.name) for v in values], counts, leaf)
                for f in dataclasses.fields(first)
                if f.init
            },
        )
    return first


def _is_per_sample(items: Sequence[Any], count: int) -> bool:
    """Whether a list holds one thing a sample, rather than columns that each hold all samples."""
    if len(items) != count or hasattr(items, "_make"):
        return False
    return not all(
        isinstance(item, (Tensor, np.ndarray, Mapping, list, tuple))
        and all(leaf.shape[0] == count for leaf in _leaves(item))
        and any(True for _ in _leaves(item))
        for item in items
    )


def _alike(first: Mapping[Any, Any], mapped: dict[Any, Any]) -> Any:
    """A mapping of the type of `first` where it can be built from a dict."""
    kind: Any = type(first)
    try:
        return kind(mapped)
    except TypeError:
        return mapped
