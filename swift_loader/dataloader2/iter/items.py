"""What happens to the inside of an item, and how one item becomes several."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.utils.common import _check_unpickable_fn, validate_input_col

from swift_loader.dataloader2.columns import call_on_columns, fields_of
from swift_loader.dataloader2.registry import functional_datapipe

__all__ = [
    "BatchMapper",
    "Dropper",
    "FlatMapper",
    "Flattener",
    "Slicer",
]

_Columns = Hashable | list[Hashable]


@functional_datapipe("flatmap")
class FlatMapper(IterDataPipe[Any]):
    """Yields each element of `fn(item)`, or of the item where `fn` is `None` (`.flatmap`).

    `input_col`: which field of the item `fn` gets, or which fields, as several arguments; `None`
    the whole item. Without `fn`, the elements of that field, or these fields, are yielded. Has no
    length (`TypeError`). `ValueError` where `fn` does not take so many arguments.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[..., Iterable[Any]] | None = None,
        input_col: Any = None,
    ) -> None:
        if fn is not None:
            _check_unpickable_fn(fn)
            validate_input_col(fn, input_col)
        self.datapipe = datapipe
        self.fn = fn
        self.input_col = input_col

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            if self.fn is None:
                yield from fields_of(item, self.input_col)
            else:
                yield from call_on_columns(self.fn, item, self.input_col)

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__}'s length relies on the output of its function.")


@functional_datapipe("map_batches")
class BatchMapper(IterDataPipe[Any]):
    """Calls `fn` on lists of `batch_size` items and yields the elements of what it returns.

    `.map_batches`. The last list may be shorter. `input_col`: `fn` gets a list with that field of
    each item, or with a list of these fields of each item. Has no length (`TypeError`): `fn` may
    return more or fewer.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[..., Iterable[Any]],
        batch_size: int,
        input_col: Any = None,
    ) -> None:
        if batch_size <= 0:
            raise ValueError(f"'batch_size' is required to be a positive integer, got {batch_size}")
        _check_unpickable_fn(fn)
        self.datapipe = datapipe
        self.fn = fn
        self.batch_size = batch_size
        self.input_col = input_col

    def __iter__(self) -> Iterator[Any]:
        for batch in self.datapipe.batch(self.batch_size):
            yield from self.fn([fields_of(item, self.input_col) for item in batch])

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__}'s length relies on the output of its function.")


@functional_datapipe("slice")
class Slicer(IterDataPipe[Any]):
    """Yields a part of each item (`.slice`).

    Lists and tuples: `item[index:stop:step]`, or the fields in `index` where that is a list (those
    that an item lacks are left out, with a warning). Dicts: only the keys in `index`.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        index: int | _Columns,
        stop: int | None = None,
        step: int | None = None,
    ) -> None:
        if (stop is not None or step is not None) and isinstance(index, list):
            warnings.warn("`stop` and `step` are ignored where `index` is a list.", stacklevel=2)
        self.datapipe = datapipe
        self.index = index
        self.stop = stop
        self.step = step

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            if isinstance(item, dict):
                wanted = _as_list(self.index)
                _warn_of_missing(item, wanted)
                yield {column: item[column] for column in wanted if column in item}
            elif isinstance(self.index, list):
                _warn_of_missing(item, self.index)
                fields = [item[i] for i in self.index if _has(item, i)]
                yield tuple(fields) if isinstance(item, tuple) else fields
            else:
                yield item[slice(self.index, self.stop, self.step)]

    def __len__(self) -> int:
        return len(self.datapipe)


@functional_datapipe("drop")
class Dropper(IterDataPipe[Any]):
    """Yields each item without the fields or keys in `indices` (`.drop`).

    A field that an item lacks is passed over, with a warning.
    """

    def __init__(self, datapipe: IterDataPipe[Any], indices: _Columns) -> None:
        self.datapipe = datapipe
        self.indices = _as_list(indices)

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            _warn_of_missing(item, self.indices)
            if isinstance(item, dict):
                yield {key: value for key, value in item.items() if key not in self.indices}
            else:
                gone = {i + len(item) if i < 0 else i for i in self.indices if isinstance(i, int)}
                fields = [field for i, field in enumerate(item) if i not in gone]
                yield tuple(fields) if isinstance(item, tuple) else fields

    def __len__(self) -> int:
        return len(self.datapipe)


@functional_datapipe("flatten")
class Flattener(IterDataPipe[Any]):
    """Puts the elements of nested fields into the item itself, one level (`.flatten`).

    `indices`: which fields or keys, `None` all that are nested (lists and tuples in lists and
    tuples, dicts in dicts). A key that is there already keeps its first value, with a warning.
    """

    def __init__(self, datapipe: IterDataPipe[Any], indices: _Columns | None = None) -> None:
        self.datapipe = datapipe
        self.indices = None if indices is None else _as_list(indices)

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            if self.indices is not None:
                _warn_of_missing(item, self.indices)
            yield self._flat_dict(item) if isinstance(item, dict) else self._flat_sequence(item)

    def _wanted(self, column: Hashable) -> bool:
        return self.indices is None or column in self.indices

    def _flat_dict(self, item: dict[Any, Any]) -> dict[Any, Any]:
        flat: dict[Any, Any] = {}
        for key, value in item.items():
            nested = self._wanted(key) and isinstance(value, dict)
            for inner_key, inner in value.items() if nested else [(key, value)]:
                if inner_key in flat:
                    warnings.warn(
                        f"flatten meets key {inner_key!r} twice; keeps the first", stacklevel=2
                    )
                flat.setdefault(inner_key, inner)
        return flat

    def _flat_sequence(self, item: Any) -> Any:
        flat: list[Any] = []
        for i, field in enumerate(item):
            if self._wanted(i) and isinstance(field, (list, tuple)):
                flat.extend(field)
            else:
                flat.append(field)
        return tuple(flat) if isinstance(item, tuple) else flat

    def __len__(self) -> int:
        return len(self.datapipe)


def _as_list(columns: Any) -> list[Any]:
    return list(columns) if isinstance(columns, (list, tuple)) else [columns]


def _has(item: Any, column: Any) -> bool:
    if isinstance(item, dict):
        return column in item
    return isinstance(column, int) and -len(item) <= column < len(item)


def _warn_of_missing(item: Any, columns: list[Any]) -> None:
    missing = [column for column in columns if not _has(item, column)]
    if missing:
        warnings.warn(f"An item lacks the fields {missing}; they are passed over.", stacklevel=3)
