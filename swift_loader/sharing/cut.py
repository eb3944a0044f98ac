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

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from swift_loader.batch.tree import SEQUENCE, branch_of, walk
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


def nb_samples_of(batch: Any) -> int:
    """The number of samples of a batch: the first dimension of its first tensor or array.

    Where none comes before it, the length of its first list of plain values. Raises `BatchError`
    when there is neither.
    """
    for count in _counts(batch):
        return count
    if branch_of(batch) is SEQUENCE:
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
        branch = branch_of(batch)
        if branch is None or _is_packed(batch):
            return
        if branch is SEQUENCE and path not in self._per_sample:
            shown = _is_per_sample(batch, count)
            if shown is not None:
                self._per_sample[path] = shown
        if not self.is_per_sample(path):
            for step in branch.steps(batch):
                self.learn(branch.part(batch, step), count, (*path, step))

    def is_per_sample(self, path: Path) -> bool:
        return self._per_sample.get(path, False)

    def cut(self, batch: Any, count: int, start: int, stop: int) -> Any:
        """Samples ``[start, stop)`` of a batch of `count` samples, as views."""
        if start == 0 and stop == count:
            return batch
        return self._map([batch], [count], lambda values: _cut(values[0], start, stop), ())

    def join(self, pieces: Sequence[tuple[Any, int]]) -> Any:
        """One batch of several, each given with its number of samples. Copies."""
        return self._map([batch for batch, _ in pieces], [count for _, count in pieces], _join, ())

    def _map(
        self, values: list[Any], counts: list[int], leaf: Callable[[list[Any]], Any], path: Path
    ) -> Any:
        """Rebuild the nesting that `values` share, with `leaf` of what has one thing a sample."""
        first = values[0]
        branch = branch_of(first)
        if branch is None or _is_packed(first):
            found = [_length(value) for value in values]
            if found == counts:
                return leaf(values)
            _refuse_what_hides_samples(first, counts[0])
            return first
        if branch is SEQUENCE and self.is_per_sample(path):
            return leaf(values)
        parts = [
            self._map([branch.part(v, step) for v in values], counts, leaf, (*path, step))
            for step in branch.steps(first)
        ]
        return branch.rebuilt(first, parts)


def _is_packed(value: Any) -> bool:
    return isinstance(value, PackedSequence)


def _length(leaf: Any) -> int | None:
    """How many samples a tensor, an array or a packed sequence has, if it can be."""
    if isinstance(leaf, Tensor):
        return leaf.size(0) if leaf.ndim else None
    if isinstance(leaf, np.ndarray):
        return len(leaf) if leaf.ndim else None
    return int(leaf.batch_sizes[0]) if isinstance(leaf, PackedSequence) else None


def _counts(value: Any) -> Iterator[int]:
    """What may be the number of samples: of each tensor, array and list of plain values."""
    branch = branch_of(value)
    if branch is None or _is_packed(value):
        length = _length(value)
        if length is not None:
            yield length
        return
    parts = branch.parts(value)
    if parts and branch is SEQUENCE and all(_is_plain(part) for part in parts):
        yield len(parts)
    for part in parts:
        yield from _counts(part)


def _is_plain(value: Any) -> bool:
    return branch_of(value) is None and not isinstance(value, (Tensor, np.ndarray))


def _is_per_sample(items: Sequence[Any], count: int) -> bool | None:
    """Whether a list holds one thing a sample, not columns of all samples; None: it may be both."""
    if len(items) != count:
        return False
    found = [set(_counts(item)) for item in items]
    return None if any(found) and all(counts <= {count} for counts in found) else True


def _refuse_what_hides_samples(leaf: Any, count: int) -> None:
    if any(inside is not leaf and _length(inside) == count for inside in walk(leaf)):
        kind = type(leaf)
        raise BatchError(
            f"a {kind.__module__}.{kind.__qualname__} holds its samples in a way of its own, so it "
            "can't be cut: leave out batch_size, or return tensors in dicts, lists or dataclasses"
        )


def _cut(value: Any, start: int, stop: int) -> Any:
    if isinstance(value, Tensor) and (value.is_nested or value.layout is not torch.strided):
        return _joined_samples(value, _samples(value)[start:stop])
    if isinstance(value, PackedSequence):
        return pack_sequence(unpack_sequence(value)[start:stop], enforce_sorted=False)
    if isinstance(value, (Tensor, np.ndarray, list, tuple)):
        return value[start:stop]
    return type(value)(list(value)[start:stop])


def _join(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, Tensor):
        if first.is_nested or first.layout is not torch.strided:
            return _joined_samples(first, [one for value in values for one in _samples(value)])
        return torch.cat(values)
    if isinstance(first, np.ndarray):
        return np.concatenate(values)
    if isinstance(first, PackedSequence):
        parts = [one for value in values for one in unpack_sequence(value)]
        return pack_sequence(parts, enforce_sorted=False)
    return type(first)(item for value in values for item in value)


def _samples(tensor: Tensor) -> list[Tensor]:
    """A sparse or nested tensor, sample by sample; of a sparse one each as a batch of one."""
    if tensor.is_nested:
        return list(tensor.unbind())
    coordinate = tensor.to_sparse(layout=torch.sparse_coo)
    places = torch.arange(tensor.shape[0], device="cpu")
    return [coordinate.index_select(0, place.view(1)) for place in places]


def _joined_samples(like: Tensor, samples: list[Tensor]) -> Tensor:
    if like.is_nested:
        return torch.nested.as_nested_tensor(samples, layout=like.layout)
    joined = torch.cat(samples)
    if like.layout is torch.sparse_coo:
        return joined
    if like.layout in (torch.sparse_csr, torch.sparse_csc):
        return joined.to_sparse(layout=like.layout)
    raise BatchError(
        f"a tensor of {like.layout} can't be cut: leave out batch_size, or return sparse_coo or "
        "sparse_csr tensors"
    )
