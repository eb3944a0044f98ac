"""How often, how many and under which number items come: nothing here looks into an item."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterator
from typing import Any, TypeVar

from torch.utils.data import IterDataPipe, MapDataPipe

from swift_loader.dataloader2.registry import functional_datapipe, register_on

__all__ = [
    "Cycler",
    "Enumerator",
    "Header",
    "InMemoryCacheHolder",
    "IndexAdder",
    "LengthSetter",
    "MapToIterConverter",
    "Repeater",
]

T_co = TypeVar("T_co", covariant=True)


@functional_datapipe("cycle")
class Cycler(IterDataPipe[T_co]):
    """Goes through the source `count` times, `None` for ever (`.cycle`).

    The source is iterated anew each time. No length when endless (`TypeError`). `ValueError` for
    `count < 0`. A source without any item ends it.
    """

    def __init__(self, source_datapipe: IterDataPipe[T_co], count: int | None = None) -> None:
        if count is not None and count < 0:
            raise ValueError(f"Expected non-negative count, got {count}")
        self.source_datapipe = source_datapipe
        self.count = count

    def __iter__(self) -> Iterator[T_co]:
        for _ in itertools.count() if self.count is None else range(self.count):
            empty = True
            for item in self.source_datapipe:
                empty = False
                yield item
            if empty:
                return

    def __len__(self) -> int:
        if self.count is None:
            raise TypeError(f"This {type(self).__name__} cycles forever, so it has no length")
        return self.count * len(self.source_datapipe)


@functional_datapipe("repeat")
class Repeater(IterDataPipe[T_co]):
    """Yields each item `times` times in a row, the same object (`.repeat`).

    `ValueError` unless `times > 1`.
    """

    def __init__(self, source_datapipe: IterDataPipe[T_co], times: int) -> None:
        if times <= 1:
            raise ValueError(f"The number of repetition must be > 1, got {times}")
        self.source_datapipe = source_datapipe
        self.times = times

    def __iter__(self) -> Iterator[T_co]:
        for item in self.source_datapipe:
            yield from itertools.repeat(item, self.times)

    def __len__(self) -> int:
        return self.times * len(self.source_datapipe)


@functional_datapipe("header")
class Header(IterDataPipe[T_co]):
    """Ends after `limit` items, or never early for `None` (`.header`).

    Where the source has no length, `len` is `limit`, with a warning: the source may be shorter.
    """

    def __init__(self, source_datapipe: IterDataPipe[T_co], limit: int | None = 10) -> None:
        if limit is not None and limit < 0:
            raise ValueError(f"Expected non-negative limit, got {limit}")
        self.source_datapipe = source_datapipe
        self.limit = limit

    def __iter__(self) -> Iterator[T_co]:
        yield from itertools.islice(self.source_datapipe, self.limit)

    def __len__(self) -> int:
        try:
            nb_source = len(self.source_datapipe)
        except TypeError:
            if self.limit is None:
                raise
            warnings.warn(
                "The length of this Header is inferred from `limit`: its source has no length, "
                "and may be shorter.",
                stacklevel=2,
            )
            return self.limit
        return nb_source if self.limit is None else min(nb_source, self.limit)


@functional_datapipe("set_length")
class LengthSetter(IterDataPipe[T_co]):
    """Says `len` is `length`, and yields whatever comes (`.set_length`)."""

    def __init__(self, source_datapipe: IterDataPipe[T_co], length: int) -> None:
        if length < 0:
            raise ValueError(f"Expected non-negative length, got {length}")
        self.source_datapipe = source_datapipe
        self.length = length

    def __iter__(self) -> Iterator[T_co]:
        yield from self.source_datapipe

    def __len__(self) -> int:
        return self.length


@functional_datapipe("enumerate")
class Enumerator(IterDataPipe[tuple[int, Any]]):
    """Yields `(number, item)`, numbers from `starting_index` on (`.enumerate`)."""

    def __init__(self, source_datapipe: IterDataPipe[Any], starting_index: int = 0) -> None:
        self.source_datapipe = source_datapipe
        self.starting_index = starting_index

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        yield from enumerate(self.source_datapipe, self.starting_index)

    def __len__(self) -> int:
        return len(self.source_datapipe)


@functional_datapipe("add_index")
class IndexAdder(IterDataPipe[dict[Any, Any]]):
    """Puts each item's number, from 0, into the item under `index_name` (`.add_index`).

    Items must be dicts (`NotImplementedError`); they are changed in place.
    """

    def __init__(
        self, source_datapipe: IterDataPipe[dict[Any, Any]], index_name: str = "index"
    ) -> None:
        self.source_datapipe = source_datapipe
        self.index_name = index_name

    def __iter__(self) -> Iterator[dict[Any, Any]]:
        for number, row in enumerate(self.source_datapipe):
            if not isinstance(row, dict):
                raise NotImplementedError(f"add_index takes dicts only, got {type(row).__name__}")
            row[self.index_name] = number
            yield row

    def __len__(self) -> int:
        return len(self.source_datapipe)


@functional_datapipe("in_memory_cache")
class InMemoryCacheHolder(IterDataPipe[T_co]):
    """Keeps the first items of the first full pass in memory (`.in_memory_cache`).

    `size`: how many megabytes (2**20 bytes) of items to keep at most, `None` all of them. Items
    count by `sys.getsizeof` plus the `nbytes` that tensors and arrays name. Later passes yield the
    kept ones from memory and go through the source only for what follows. A copy (pickle) starts
    with an empty cache.
    """

    def __init__(self, source_dp: IterDataPipe[T_co], size: int | None = None) -> None:
        self.source_dp = source_dp
        self.size = None if size is None else size * 1024 * 1024
        self._kept: list[T_co] | None = None
        self._complete = False
        self._nb_item: int | None = None

    def __iter__(self) -> Iterator[T_co]:
        if self._kept is not None:
            yield from self._kept
            if not self._complete:
                yield from itertools.islice(self.source_dp, len(self._kept), None)
            return
        kept: list[T_co] = []
        nb_bytes = nb_item = 0
        complete = True
        for item in self.source_dp:
            nb_item += 1
            nb_bytes += sys.getsizeof(item) + int(getattr(item, "nbytes", 0))
            complete = complete and (self.size is None or nb_bytes <= self.size)
            if complete:
                kept.append(item)
            yield item
        self._kept, self._complete, self._nb_item = kept, complete, nb_item

    def __len__(self) -> int:
        if self._nb_item is not None:
            return self._nb_item
        try:
            return len(self.source_dp)
        except TypeError as error:
            raise TypeError(
                f"{type(self).__name__} has no length before it was iterated to its end once"
            ) from error

    def __getstate__(self) -> Any:
        state = {**self.__dict__, "_kept": None, "_complete": False}
        hook = IterDataPipe.getstate_hook
        return state if hook is None else hook(state)


class MapToIterConverter(IterDataPipe[T_co]):
    """Yields `datapipe[i]` for each of `indices`, by default `range(len(datapipe))`.

    `.to_iter_datapipe`, on map-style pipes.
    """

    def __init__(self, datapipe: MapDataPipe[T_co], indices: list[Any] | None = None) -> None:
        if not isinstance(datapipe, MapDataPipe):
            raise TypeError(f"to_iter_datapipe takes a MapDataPipe, got {type(datapipe).__name__}")
        self.datapipe = datapipe
        self.indices = indices

    def __iter__(self) -> Iterator[T_co]:
        for index in range(len(self)) if self.indices is None else self.indices:
            yield self.datapipe[index]

    def __len__(self) -> int:
        return len(self.datapipe if self.indices is None else self.indices)


register_on(MapDataPipe, "to_iter_datapipe", MapToIterConverter)
