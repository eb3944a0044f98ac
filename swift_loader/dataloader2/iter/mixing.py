"""Several pipes into one: by turns, by weight, by key."""

from __future__ import annotations

import itertools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data.datapipes.utils.common import _check_unpickable_fn

from swift_loader.dataloader2.randomness import RandomPipe
from swift_loader.dataloader2.registry import functional_datapipe

__all__ = [
    "IterKeyZipper",
    "MapKeyZipper",
    "MultiplexerLongest",
    "SampleMultiplexer",
    "ZipperLongest",
    "sample_mux",
]

T_co = TypeVar("T_co", covariant=True)
_MISSING: Any = object()


def _all_pipes(datapipes: tuple[IterDataPipe[T_co], ...]) -> tuple[IterDataPipe[T_co], ...]:
    """Raises `TypeError` unless they are pipes: nobody could say when others begin anew."""
    for one in datapipes:
        if not isinstance(one, IterDataPipe):
            raise TypeError(f"{one!r:.100} is no data pipe: give IterableWrapper(…) of it")
    return datapipes


@functional_datapipe("mux_longest")
class MultiplexerLongest(IterDataPipe[T_co]):
    """One item of each pipe by turns, until all are exhausted (`.mux_longest`)."""

    def __init__(self, *datapipes: IterDataPipe[T_co]) -> None:
        self.datapipes = _all_pipes(datapipes)

    def __iter__(self) -> Iterator[T_co]:
        for turn in itertools.zip_longest(*self.datapipes, fillvalue=_MISSING):
            for item in turn:
                if item is not _MISSING:
                    yield item

    def __len__(self) -> int:
        return sum(len(datapipe) for datapipe in self.datapipes)


@functional_datapipe("zip_longest")
class ZipperLongest(IterDataPipe[tuple[Any, ...]]):
    """Tuples of one item of each pipe, until all are exhausted (`.zip_longest`).

    `fill_value` stands for the items of those that ended.
    """

    def __init__(self, *datapipes: IterDataPipe[Any], fill_value: Any = None) -> None:
        self.datapipes = _all_pipes(datapipes)
        self.fill_value = fill_value

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        yield from itertools.zip_longest(*self.datapipes, fillvalue=self.fill_value)

    def __len__(self) -> int:
        return max(len(datapipe) for datapipe in self.datapipes)


class SampleMultiplexer(RandomPipe[T_co]):
    """Each item from a pipe chosen by weight; ends when all are exhausted.

    `pipes_to_weights_dict`: pipe -> weight above 0. An exhausted pipe is left out, the others keep
    their relative weights (`cycle` the pipes to keep the mixture). `seed`: of every iteration for
    which `set_seed` was not called. A loader calls `set_seed` before each epoch.
    `dp.sample_mux(...)` builds one.
    """

    def __init__(
        self, pipes_to_weights_dict: dict[IterDataPipe[T_co], float], seed: int | None = None
    ) -> None:
        super().__init__()
        if not pipes_to_weights_dict:
            raise ValueError("SampleMultiplexer needs at least one pipe")
        for weight in pipes_to_weights_dict.values():
            if weight <= 0:
                raise ValueError(f"Expecting a positive and non-zero weight, got {weight}")
        # Two lists, not a dict: a copy's pipes must not be hashed before they are rebuilt.
        self.datapipes = list(pipes_to_weights_dict)
        self.weights = list(pipes_to_weights_dict.values())
        self.default_seed = seed

    def reset(self) -> None:
        """Seed the choice for the iteration that begins."""
        if self._seed is None:
            self._seed = self.default_seed
        super().reset()

    def __iter__(self) -> Iterator[T_co]:
        iterators = [iter(datapipe) for datapipe in self.datapipes]
        weights = list(self.weights)
        while iterators:
            (i,) = self._rng.choices(range(len(iterators)), weights)
            try:
                item = next(iterators[i])
            except StopIteration:
                del iterators[i], weights[i]
            else:
                yield item

    def __len__(self) -> int:
        return sum(len(datapipe) for datapipe in self.datapipes)


@functional_datapipe("sample_mux")
def sample_mux(
    source_datapipe: IterDataPipe[T_co],
    *datapipes: IterDataPipe[T_co],
    weights: list[float] | None = None,
    seed: int | None = None,
) -> SampleMultiplexer[T_co]:
    """`SampleMultiplexer` over the pipe it is called on and `datapipes`, with `weights` in order.

    Equal weights by default. `ValueError` where there are not as many weights as pipes.
    """
    pipes = [source_datapipe, *datapipes]
    weights = [1.0] * len(pipes) if weights is None else weights
    if len(weights) != len(pipes):
        raise ValueError(f"sample_mux got {len(weights)} weights for {len(pipes)} pipes")
    return SampleMultiplexer(dict(zip(pipes, weights, strict=True)), seed)


@functional_datapipe("zip_with_iter")
class IterKeyZipper(IterDataPipe[Any]):
    """Joins each item with the item of another pipe that has the same key (`.zip_with_iter`).

    Order and length are those of `source_datapipe`. Reference items met on the way to a match wait
    in a buffer of `buffer_size` (`None`: no limit); beyond it the oldest is dropped, with a
    warning. `BufferError` where no match comes, `ValueError` for a reference key that comes twice
    while it waits. `ref_key_fn` is `key_fn` by default. Yields `merge_fn(item, reference)`, by
    default the pair; `keep_key`: `(key, merged)`.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        ref_datapipe: IterDataPipe[Any],
        key_fn: Callable[[Any], Any],
        ref_key_fn: Callable[[Any], Any] | None = None,
        keep_key: bool = False,
        buffer_size: int | None = 10000,
        merge_fn: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        if not isinstance(ref_datapipe, IterDataPipe):
            raise TypeError(
                f"ref_datapipe must be an IterDataPipe, got {type(ref_datapipe).__name__}"
            )
        if buffer_size is not None and buffer_size <= 0:
            raise ValueError("'buffer_size' is required to be either None or a positive integer.")
        for fn in (key_fn, ref_key_fn, merge_fn):
            if fn is not None:
                _check_unpickable_fn(fn)
        self.source_datapipe = source_datapipe
        self.ref_datapipe = ref_datapipe
        self.key_fn = key_fn
        self.ref_key_fn = key_fn if ref_key_fn is None else ref_key_fn
        self.keep_key = keep_key
        self.buffer_size = buffer_size
        self.merge_fn = merge_fn

    def __iter__(self) -> Iterator[Any]:
        waiting: OrderedDict[Any, Any] = OrderedDict()
        references = iter(self.ref_datapipe)
        for item in self.source_datapipe:
            key = self.key_fn(item)
            while key not in waiting:
                self._read_one(references, waiting, key)
            merged = _merge(self.merge_fn, item, waiting.pop(key))
            yield (key, merged) if self.keep_key else merged

    def _read_one(
        self, references: Iterator[Any], waiting: OrderedDict[Any, Any], wanted: Any
    ) -> None:
        try:
            reference = next(references)
        except StopIteration:
            raise BufferError(
                f"No item with key {wanted!r} came from the reference pipe. There is none, or it "
                f"was dropped because more than `buffer_size`={self.buffer_size} items waited."
            ) from None
        key = self.ref_key_fn(reference)
        if key in waiting:
            raise ValueError(f"The reference pipe gave key {key!r} twice")
        if self.buffer_size is not None and len(waiting) >= self.buffer_size:
            warnings.warn(
                f"zip_with_iter drops its oldest reference item: {self.buffer_size} wait already",
                stacklevel=2,
            )
            waiting.popitem(last=False)
        waiting[key] = reference

    def __len__(self) -> int:
        return len(self.source_datapipe)


@functional_datapipe("zip_with_map")
class MapKeyZipper(IterDataPipe[Any]):
    """Joins each item with `map_datapipe[key_fn(item)]` (`.zip_with_map`).

    `KeyError` where that is not there. `keep_key` and `merge_fn` as of `zip_with_iter`.
    """

    def __init__(
        self,
        source_iterdatapipe: IterDataPipe[Any],
        map_datapipe: MapDataPipe[Any],
        key_fn: Callable[[Any], Any],
        merge_fn: Callable[[Any, Any], Any] | None = None,
        keep_key: bool = False,
    ) -> None:
        if not isinstance(map_datapipe, MapDataPipe):
            raise TypeError(
                f"map_datapipe must be a MapDataPipe, got {type(map_datapipe).__name__}"
            )
        for fn in (key_fn, merge_fn):
            if fn is not None:
                _check_unpickable_fn(fn)
        self.source_iterdatapipe = source_iterdatapipe
        self.map_datapipe = map_datapipe
        self.key_fn = key_fn
        self.merge_fn = merge_fn
        self.keep_key = keep_key

    def __iter__(self) -> Iterator[Any]:
        for item in self.source_iterdatapipe:
            key = self.key_fn(item)
            try:
                reference = self.map_datapipe[key]
            except (KeyError, IndexError) as error:
                raise KeyError(
                    f"key_fn gave {key!r}, which is not in the given MapDataPipe"
                ) from error
            merged = _merge(self.merge_fn, item, reference)
            yield (key, merged) if self.keep_key else merged

    def __len__(self) -> int:
        return len(self.source_iterdatapipe)


def _merge(merge_fn: Callable[[Any, Any], Any] | None, item: Any, reference: Any) -> Any:
    return (item, reference) if merge_fn is None else merge_fn(item, reference)
