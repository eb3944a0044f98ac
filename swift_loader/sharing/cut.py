"""Cutting a stream of batches anew, into batches of another size. Pure.

Tensors and arrays whose first dimension counts the samples are cut along it; so are lists and
tuples with one thing a sample (strings, numbers, or whole targets). Everything else (a scalar, a
name) is the same in each piece. A piece within one batch is a view; only across the seam between
two batches is anything copied.

Whether a list holds columns or one thing a sample can't be told from a batch that has as many
samples as the list has columns. So `Layout` remembers, by place in the nesting, what other batches
of the stream have shown; as long as none has, such a list is taken for columns.
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

__all__ = ["Cutter", "Layout", "nb_samples_of"]

Path = tuple[Any, ...]


class Cutter:
    """Takes batches of any size, gives batches of `batch_size`; the last of an epoch is shorter."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._layout = Layout()
        self._waiting: deque[tuple[Any, int, int, int]] = deque()  # batch, samples, start, stop
        self._nb_waiting = 0

    def put(self, batch: Any) -> None:
        """Take a batch in. Raises `BatchError` where its samples can't be counted."""
        count = nb_samples_of(batch)
        if count:
            self._layout.learn(batch, count)
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
            pieces.append((self._layout.cut(batch, count, start, end), end - start))
            wanted -= end - start
            if end < stop:
                self._waiting.appendleft((batch, count, end, stop))
        return pieces[0][0] if len(pieces) == 1 else self._layout.join(pieces)

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


class Layout:
    """Which lists of a stream's batches have one thing a sample, as far as batches have shown."""

    def __init__(self) -> None:
        self._per_sample: dict[Path, bool] = {}

    def learn(self, batch: Any, count: int, path: Path = ()) -> None:
        """See what a batch of `count` samples shows."""
        if isinstance(batch, Mapping):
            for key, value in batch.items():
                self.learn(value, count, (*path, key))
        elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
            for field in dataclasses.fields(batch):
                self.learn(getattr(batch, field.name), count, (*path, field.name))
        elif isinstance(batch, (list, tuple)):
            if path not in self._per_sample:
                shown = _is_per_sample(batch, count)
                if shown is not None:
                    self._per_sample[path] = shown
            if not self.is_per_sample(path):
                for i, value in enumerate(batch):
                    self.learn(value, count, (*path, i))

    def is_per_sample(self, path: Path) -> bool:
        return self._per_sample.get(path, False)

    def cut(self, batch: Any, count: int, start: int, stop: int) -> Any:
        """Samples ``[start, stop)`` of a batch of `count` samples, as views."""
        if start == 0 and stop == count:
            return batch
        return self._map([batch], [count], lambda values: values[0][start:stop], ())

    def join(self, pieces: Sequence[tuple[Any, int]]) -> Any:
        """One batch of several, each given with its number of samples. Copies."""
        return self._map([batch for batch, _ in pieces], [count for _, count in pieces], _join, ())

    def _map(
        self, values: list[Any], counts: list[int], leaf: Callable[[list[Any]], Any], path: Path
    ) -> Any:
        """Rebuild the nesting that `values` share, with `leaf` of what has one thing a sample."""
        first = values[0]
        if isinstance(first, (Tensor, np.ndarray)):
            whole = all(v.ndim and v.shape[0] == n for v, n in zip(values, counts, strict=True))
            return leaf(values) if whole else first
        if isinstance(first, Mapping):
            mapped = {
                key: self._map([v[key] for v in values], counts, leaf, (*path, key))
                for key in first
            }
            return mapped if type(first) is dict else _alike(first, mapped)
        if isinstance(first, (list, tuple)):
            if self.is_per_sample(path):
                return leaf(values)
            columns = zip(*values, strict=True)
            items = [
                self._map(list(column), counts, leaf, (*path, i))
                for i, column in enumerate(columns)
            ]
            return first._make(items) if hasattr(first, "_make") else type(first)(items)
        if dataclasses.is_dataclass(first) and not isinstance(first, type):
            fields = [f.name for f in dataclasses.fields(first) if f.init]
            return dataclasses.replace(
                first,
                **{
                    name: self._map([getattr(v, name) for v in values], counts, leaf, (*path, name))
                    for name in fields
                },
            )
        return first


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


def _join(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, Tensor):
        return torch.cat(values)
    if isinstance(first, np.ndarray):
        return np.concatenate(values)
    return type(first)(item for value in values for item in value)


def _is_per_sample(items: Sequence[Any], count: int) -> bool | None:
    """Whether a list holds one thing a sample, not columns of all samples; None: it may be both."""
    if len(items) != count or hasattr(items, "_make"):
        return False
    columns = all(
        isinstance(item, (Tensor, np.ndarray, Mapping, list, tuple))
        and all(leaf.shape[0] == count for leaf in _leaves(item))
        and any(True for _ in _leaves(item))
        for item in items
    )
    return None if columns else True


def _alike(first: Mapping[Any, Any], mapped: dict[Any, Any]) -> Any:
    """A mapping of the type of `first` where it can be built from a dict."""
    kind: Any = type(first)
    try:
        return kind(mapped)
    except TypeError:
        return mapped
