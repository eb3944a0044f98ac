"""`ArrayDataset`: a data set that is arrays, and `Windows`: overlapping stretches of one of them.

A data set of arrays needs no sample objects: a worker gathers the rows of a batch straight from the
arrays into the batch's shared memory (see `worker/columns.py`), and no code runs for each sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ArrayDataset", "Windows"]


class Windows(Sequence[NDArray[Any]]):
    """Stretches of equal length of one array, as the rows of another. They are views, not copies.

    Parameters
    ----------
    array:
        The numpy array or memory map that the windows are cut from, along its first dimension.
    length:
        Rows of `array` in a window.
    step:
        Rows from the start of a window to the start of the next one. None: `length`, so that the
        windows lie end to end. There is no window for rows at the end that don't fill one.
    offset:
        Where the first window starts.

    Raises
    ------
    ValueError
        The array has no dimensions, a length or step is below 1, or an offset below 0.

    Examples
    --------
    >>> import numpy as np
    >>> tokens = np.arange(10)
    >>> [list(window) for window in Windows(tokens, 4, step=3, offset=1)]
    [[1, 2, 3, 4], [4, 5, 6, 7]]
    """

    __slots__ = ("array", "length", "offset", "step")

    def __init__(
        self, array: NDArray[Any], length: int, *, step: int | None = None, offset: int = 0
    ) -> None:
        step = length if step is None else step
        if not isinstance(array, np.ndarray) or array.ndim == 0:
            raise ValueError(f"Windows are cut from a numpy array with a first dimension, not from "
                             f"{_kind(array)}")  # fmt: skip
        if length < 1 or step < 1 or offset < 0:
            raise ValueError(f"Windows(length={length}, step={step}, offset={offset}): length and "
                             "step are at least 1, and offset at least 0")  # fmt: skip
        self.array, self.length, self.step, self.offset = array, length, step, offset

    def __len__(self) -> int:
        return max(0, (len(self.array) - self.offset - self.length) // self.step + 1)

    def __getitem__(self, index: Any) -> Any:
        nb_windows = len(self)
        if not -nb_windows <= index < nb_windows:
            raise IndexError(f"window {index} of {nb_windows}")
        start = self.offset + index % nb_windows * self.step
        return self.array[start : start + self.length]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an array that has all windows as its rows."""
        return (len(self), self.length, *self.array.shape[1:])


class ArrayDataset:
    """A map-style data set whose samples are the rows of one or several arrays.

    The batches are the same that torch's `DataLoader` makes of such samples with its default
    collate: tensors of the arrays' dtypes, with the rows along a new first dimension. Workers
    gather a batch without making samples, unless the loader has a `transform`, a `collate_fn`, a
    `batch_encoder` or a `cache`. Large arrays had best be memory maps, of which only the file's
    name travels to the workers.

    Parameters
    ----------
    *arrays:
        numpy arrays, memory maps, CPU tensors or `Windows`, all of one length. A sample is a tuple
        of their rows; with a single array it is the row itself.
    **named:
        Arrays by name instead. A sample is then a dict.

    Raises
    ------
    ValueError
        There is no array, the arrays have different lengths, or some have a name and some have not.

    Examples
    --------
    >>> import numpy as np
    >>> tokens = np.arange(100)
    >>> data = ArrayDataset(x=Windows(tokens, 8), y=Windows(tokens, 8, offset=1))
    >>> len(data), data[2]["y"][0]
    (12, np.int64(17))
    """

    def __init__(self, *arrays: Any, **named: Any) -> None:
        if bool(arrays) == bool(named):
            raise ValueError("ArrayDataset takes arrays, or arrays by name: ArrayDataset(x, y) or "
                             "ArrayDataset(x=x, y=y)")  # fmt: skip
        columns: dict[Any, Any] = dict(named)
        columns.update(enumerate(arrays))
        for name, column in columns.items():
            if not hasattr(column, "shape") or len(column.shape) == 0:
                raise ValueError(f"ArrayDataset: {name!r} is {_kind(column)}: give a numpy array, "
                                 "a CPU tensor or Windows")  # fmt: skip
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"ArrayDataset: the arrays have different lengths: {lengths}")
        self.columns: Mapping[Any, Any] = columns
        self._is_named = bool(named)
        self._nb_samples: int = next(iter(lengths.values()))

    @property
    def is_named(self) -> bool:
        """Whether a sample is a dict."""
        return self._is_named

    def __len__(self) -> int:
        return self._nb_samples

    def __getitem__(self, index: int) -> Any:
        if self._is_named:
            return {name: column[index] for name, column in self.columns.items()}
        row = tuple(column[index] for column in self.columns.values())
        return row if len(row) > 1 else row[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
