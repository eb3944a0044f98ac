"""The data set that a worker builds of a `Mixture`: the samples of all its sources.

Sample index ``i`` counts through the sources in their order. Which indices come when is the plan's
business (`swift_loader.plan.mixture`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from swift_loader.errors import refuse

__all__ = ["Blended", "Ingredient"]


@dataclass(frozen=True)
class Ingredient:
    """A source as workers need it. `build` and `kwargs` give its data set, or `build` is one."""

    name: str
    build: Any
    kwargs: Mapping[str, Any] | None
    transform: Callable[[Any], Any] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None

    def dataset(self) -> Any:
        """Raises what its constructor raises; `ConfigError` for what has no length."""
        dataset = self.build if self.kwargs is None else self.build(**self.kwargs)
        if self.kwargs is None and not _by_index(dataset) and callable(dataset):
            dataset = dataset()  # a function, or another description
        if not _by_index(dataset) or not hasattr(dataset, "__len__"):
            refuse(f"sources[{self.name!r}]", dataset, "a source of a mixture needs __getitem__ "
                   "and __len__: a stream can't be one")  # fmt: skip
        if not len(dataset):
            refuse(f"sources[{self.name!r}]", dataset, "it is empty; leave it out")
        return dataset


def _by_index(dataset: Any) -> bool:
    return hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")


class Blended:
    """All samples of all sources; `with_source`: as ``(sample, name of the source)``.

    ``__getitems__`` is there where a source has it: each source is asked once a batch.
    """

    def __init__(self, ingredients: Sequence[Ingredient], with_source: bool) -> None:
        self.sources = {one.name: one.dataset() for one in ingredients}
        self._names = tuple(self.sources)
        self._datasets = tuple(self.sources.values())
        self._transforms = tuple(one.transform for one in ingredients)
        self._collate = tuple(one.collate_fn for one in ingredients)
        self._with_source = with_source
        self.lengths_of_sources = tuple(map(len, self._datasets))
        self._ends = tuple(accumulate(self.lengths_of_sources))
        self._many = [getattr(dataset, "__getitems__", None) for dataset in self._datasets]
        if any(map(callable, self._many)):
            self.__getitems__ = self._get_many
        if any(self._collate):
            self.collate_of = self._collate_of

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        source, place = self._find(index)
        return self._finish(source, self._datasets[source][place])

    def set_epoch(self, epoch: int) -> None:
        """Told to every source that has it, and to transforms. A source's rounds are not epochs."""
        for one in (*self._datasets, *self._transforms):
            if callable(getattr(one, "set_epoch", None)):
                one.set_epoch(epoch)

    def _collate_of(self, indices: Sequence[int]) -> Callable[[list[Any]], Any] | None:
        """The `collate_fn` of the source that a batch is of; None: the loader's."""
        return self._collate[self._find(indices[0])[0]]

    def _get_many(self, indices: Sequence[int]) -> list[Any]:
        by_source: dict[int, tuple[list[int], list[int]]] = {}
        for order, index in enumerate(indices):
            source, place = self._find(index)
            orders, places = by_source.setdefault(source, ([], []))
            orders.append(order)
            places.append(place)
        samples: list[Any] = [None] * len(indices)
        for source, (orders, places) in by_source.items():
            many = self._many[source]
            dataset = self._datasets[source]
            found = many(places) if callable(many) else [dataset[place] for place in places]
            for order, sample in zip(orders, found, strict=True):
                samples[order] = self._finish(source, sample)
        return samples

    def _find(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self._ends[-1]:
            raise IndexError(f"sample {index} is not in [0, {self._ends[-1]})")
        source = bisect_right(self._ends, index)
        return source, index - (self._ends[source - 1] if source else 0)

    def _finish(self, source: int, sample: Any) -> Any:
        transform = self._transforms[source]
        if transform is not None:
            sample = transform(sample)
        return (sample, self._names[source]) if self._with_source else sample
