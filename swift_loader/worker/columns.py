"""Batches of data sets that are arrays, gathered without sample objects.

The rows of a batch are taken from each array by one call, straight into the batch's shared memory.
The batch is the very one that fetching and collating its samples gives; where that can't be told
beforehand (an index out of range, a type that the default collate treats in another way), the
worker makes the samples, as for any other data set.

What is gathered: `ArrayDataset`, torch's `TensorDataset`, arrays and CPU tensors themselves,
`Subset` of these, Hugging Face's `Dataset` in the formats ``"numpy"`` and ``"torch"``, which gives
all rows of a batch at once, and `Packed`, which reads the user's documents for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset, TensorDataset

from swift_loader.batch.arena import Arena
from swift_loader.containers.array_dataset import ArrayDataset, Windows
from swift_loader.sources.packed import Packed

__all__ = ["Gather", "gather_of", "reads_documents"]

#: Makes the batch of these samples in the arena; None where its samples must be made.
Gather = Callable[[Sequence[int], Arena], Any]


def gather_of(dataset: Any) -> Gather | None:
    """How the batches of `dataset` are gathered; None for a data set that is no arrays.

    Only exact types count: a subclass may give other samples.
    """
    kind = type(dataset)
    if kind is Subset:
        return _of_subset(dataset)
    if kind is TensorDataset:
        return _of_tensors(dataset)
    if kind is ArrayDataset:
        return _of_arrays(dataset)
    if kind in (np.ndarray, np.memmap, torch.Tensor):
        return _of_columns({0: dataset}, is_named=False)
    if kind is Packed:
        return partial(_packed, dataset)
    if kind is _class_of_hugging_face():
        return _Rows(dataset)
    return None


def reads_documents(dataset: Any) -> bool:
    """Whether gathering from `dataset` runs code of the user's, which may draw."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is Packed


def _of_subset(subset: Subset[Any]) -> Gather | None:
    dataset = subset.dataset
    gather = gather_of(dataset)
    if gather is None:
        return None

    def gathered(indices: Sequence[int], arena: Arena) -> Any:
        if subset.dataset is not dataset:  # somebody has set another since
            return None
        chosen = subset.indices
        rows = [chosen[index] for index in indices]
        return gather(list(map(int, rows)), arena) if all(map(_is_place, rows)) else None

    return gathered


def _is_place(index: Any) -> bool:
    """Whether it stands for one row: no flag, fraction, or tensor such as ``nonzero()`` gives."""
    if isinstance(index, torch.Tensor):
        return index.ndim == 0 and index.dtype in (torch.int64, torch.int32)
    return type(index) is int or isinstance(index, np.integer)


def _of_tensors(dataset: TensorDataset) -> Gather | None:
    tensors = dataset.tensors
    columns = _columns(tensors)
    if columns is None:
        return None

    def gathered(indices: Sequence[int], arena: Arena) -> Any:
        if dataset.tensors is not tensors:  # somebody has set others since
            return None
        fields = _fields(columns, indices, arena)
        return fields if fields is None else list(fields)

    return gathered


def _of_arrays(dataset: ArrayDataset) -> Gather | None:
    columns = dataset.columns
    gather = _of_columns(columns, dataset.is_named)
    if gather is None:
        return None

    def gathered(indices: Sequence[int], arena: Arena) -> Any:
        return gather(indices, arena) if dataset.columns is columns else None

    return gathered


def _of_columns(named: Any, is_named: bool) -> Gather | None:
    columns = _columns(list(named.values()))
    if columns is None:
        return None
    names = list(named)

    def gathered(indices: Sequence[int], arena: Arena) -> Any:
        fields = _fields(columns, indices, arena)
        if fields is None:
            return None
        if is_named:
            return dict(zip(names, fields, strict=True))
        return list(fields) if len(fields) > 1 else fields[0]

    return gathered


def _packed(dataset: Packed, indices: Sequence[int], arena: Arena) -> Any:
    batch = dataset.batch(indices, partial(_empty, arena))
    return {name: torch.from_numpy(array) for name, array in batch.items()}


# ---- columns


@dataclass(frozen=True, slots=True)
class _Column:
    """Rows of one array. `windows`: where the rows are cut from it, as (offset, step, length)."""

    array: NDArray[Any]
    dtype: torch.dtype
    shape: tuple[int, ...]  # of a row
    nb_rows: int
    windows: tuple[int, int, int] | None = None

    def into(self, out: NDArray[Any], indices: NDArray[np.int64]) -> None:
        if self.windows is not None:
            offset, step, length = self.windows
            array = self.array
            for row, start in enumerate((offset + indices * step).tolist()):
                out[row] = array[start : start + length]
        elif self.array.flags.c_contiguous:
            # "clip", as numpy would copy the result once more to be able to raise; the indices are
            # known to be in range.
            np.take(self.array, indices, axis=0, out=out, mode="clip")
        else:  # `take` would first copy the whole array
            for row, index in enumerate(indices.tolist()):
                out[row] = self.array[index]


def _columns(values: Sequence[Any]) -> list[_Column] | None:
    columns = [_column(value) for value in values]
    return [column for column in columns if column is not None] if all(columns) else None


def _column(value: Any) -> _Column | None:
    if type(value) is Windows:
        inner = _column(value.array)
        if inner is None:
            return None
        return _Column(inner.array, inner.dtype, (value.length, *inner.shape), len(value),
                       (value.offset, value.step, value.length))  # fmt: skip
    if type(value) is torch.Tensor:
        return _of_tensor(value)
    if type(value) not in (np.ndarray, np.memmap) or value.ndim == 0:
        return None
    if value.dtype.kind not in "biufc" or not value.dtype.isnative:
        return None
    try:
        dtype = torch.from_numpy(np.empty(0, value.dtype)).dtype
    except TypeError:
        return None  # one that torch does not have
    return _Column(np.asarray(value), dtype, value.shape[1:], len(value))


def _of_tensor(tensor: torch.Tensor) -> _Column | None:
    if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    if tensor.ndim == 0 or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return None
    bare = tensor.detach()
    try:
        array = bare.numpy()
    except TypeError:  # a dtype that numpy does not have: the bits do as well
        try:
            array = bare.view(_BITS[bare.dtype.itemsize]).numpy()
        except (KeyError, RuntimeError):
            return None
    return _Column(array, tensor.dtype, array.shape[1:], len(array))


_BITS = {1: torch.uint8, 2: torch.int16}  # bfloat16, the kinds of float8


def _fields(
    columns: Sequence[_Column], indices: Sequence[int], arena: Arena
) -> list[torch.Tensor] | None:
    """The rows `indices` of each column. None where an index is out of range."""
    rows = np.array(indices, np.int64)
    if not rows.size or rows.min() < 0 or rows.max() >= columns[0].nb_rows:
        return None
    return [_taken(column, rows, arena) for column in columns]


def _taken(column: _Column, rows: NDArray[np.int64], arena: Arena) -> torch.Tensor:
    out = _empty(arena, (len(rows), *column.shape), column.array.dtype)
    column.into(out, rows)
    tensor = torch.from_numpy(out)
    return tensor if tensor.dtype is column.dtype else tensor.view(column.dtype)


def _empty(arena: Arena, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array in the batch's shared memory, or elsewhere where it doesn't fit."""
    out = arena.empty_array(shape, dtype)
    return np.empty(shape, dtype) if out is None else out


# ---- Hugging Face


def _class_of_hugging_face() -> Any:
    """The class of `datasets`' map-style data sets where that is imported, else what is no type."""
    module = sys.modules.get("datasets.arrow_dataset")
    return getattr(module, "Dataset", None)


class _Rows:
    """All rows of a batch by one call, as long as they are numbers of one shape."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._is_of_use = dataset.format["type"] in ("numpy", "torch")

    def __call__(self, indices: Sequence[int], arena: Arena) -> Any:
        if not self._is_of_use:
            return None
        batch = self._dataset[list(indices)]
        fields: dict[str, torch.Tensor] = {}
        for name, rows in batch.items():
            column = _column(rows)
            if column is None or rows.ndim == 0:
                self._is_of_use = False  # strings, or rows of several shapes: of no use again
                return None
            fields[name] = _taken(column, np.arange(len(rows)), arena)
        return fields
