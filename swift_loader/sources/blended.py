"""The data set that a worker builds of a `Mixture`: the samples of all its sources.

Sample index ``i`` counts through the sources in their order. Which indices come when is the plan's
business (`swift_loader.plan.mixture`).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from swift_loader.batch.asynchronous import awaiting, is_asynchronous, result_of
from swift_loader.errors import refuse

__all__ = ["Blended", "Ingredient", "blended"]


@dataclass(frozen=True)
class Ingredient:
    """A source as workers need it. `build` and `kwargs` give its data set, or `build` is one."""

    name: str
    build: Any
    kwargs: Mapping[str, Any] | None
    transform: Callable[[Any], Any] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None

    @property
    def is_built(self) -> bool:
        """Whether `build` is the data set, not what makes one."""
        return self.kwargs is None and _by_index(self.build)

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


def blended(ingredients: Sequence[Ingredient], with_source: bool) -> Blended:
    """The data set of all samples. Samples come by coroutines if those of a source do."""
    datasets = [one.dataset() for one in ingredients]
    awaited = any(is_asynchronous(awaiting(dataset)) for dataset in datasets)
    kind = AwaitedBlended if awaited else Blended
    return kind(ingredients, datasets, with_source)


class Blended:
    """All samples of all sources; `with_source`: as ``(sample, name of the source)``.

    ``__getitems__`` is there where a source has it: each source is asked once a batch. The worker
    tells `datasets` and `transforms` what a data set is told, such as the epoch. A source's rounds
    are not epochs.
    """

    def __init__(
        self, ingredients: Sequence[Ingredient], datasets: Sequence[Any], with_source: bool
    ) -> None:
        self._names = tuple(one.name for one in ingredients)
        self._datasets = tuple(map(awaiting, datasets))
        self.sources = dict(zip(self._names, datasets, strict=True))
        self.datasets = tuple(datasets)
        self.transforms = tuple(one.transform for one in ingredients)
        self._collate = tuple(one.collate_fn for one in ingredients)
        self._with_source = with_source
        self.lengths_of_sources = tuple(map(len, datasets))
        *self._starts, self._length = accumulate(self.lengths_of_sources, initial=0)
        self._finishes = with_source or any(self.transforms)
        self._many = [getattr(dataset, "__getitems__", None) for dataset in self._datasets]
        if any(map(callable, self._many)):
            self.__getitems__ = self._get_many
        if any(self._collate):
            self.collate_of = self._collate_of

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        source, place = self._find(index)
        return self._finish(source, self._datasets[source][place])

    def append_each(
        self, indices: Any, samples: list[Any], progress: MutableSequence[int] | memoryview
    ) -> None:
        """Append the samples of these, one by one; `progress[0]` is set to each index before.

        By `__getitem__` the calls of ours would take as long as a source of views does.
        """
        starts, length, datasets = self._starts, self._length, self._datasets
        finish = self._finish if self._finishes else None
        for index in indices:
            progress[0] = index
            if not 0 <= index < length:
                raise self._missing(index)
            source = bisect_right(starts, index) - 1
            sample = datasets[source][index - starts[source]]
            samples.append(sample if finish is None else finish(source, sample))

    def samples_of_same_source(self, index: int) -> range:
        """The indices of the samples of the source that this one is of."""
        source, place = self._find(index)
        start = index - place
        return range(start, start + self.lengths_of_sources[source])

    def _collate_of(self, indices: Sequence[int]) -> Callable[[list[Any]], Any] | None:
        """The `collate_fn` of the source that a batch is of; None: the loader's."""
        return self._collate[self._find(indices[0])[0]]

    def _get_many(self, indices: Sequence[int]) -> Any:
        samples: list[Any] = [None] * len(indices)
        for source, asked in self._by_source(indices).items():
            many, places = self._many[source], list(asked.values())
            dataset = self._datasets[source]
            found = many(places) if callable(many) else [dataset[place] for place in places]
            for order, sample in zip(asked, found, strict=True):
                samples[order] = self._finish(source, sample)
        return samples

    def _by_source(self, indices: Sequence[int]) -> dict[int, dict[int, int]]:
        """Of each source: what is wanted of it, by where that stands in `indices`."""
        by_source: dict[int, dict[int, int]] = {}
        for order, index in enumerate(indices):
            source, place = self._find(index)
            by_source.setdefault(source, {})[order] = place
        return by_source

    def _find(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self._length:
            raise self._missing(index)
        source = bisect_right(self._starts, index) - 1
        return source, index - self._starts[source]

    def _missing(self, index: int) -> IndexError:
        return IndexError(f"sample {index} is not in [0, {self._length})")

    def _finish(self, source: int, sample: Any) -> Any:
        transform = self.transforms[source]
        if transform is not None:
            sample = transform(sample)
        return (sample, self._names[source]) if self._with_source else sample


class AwaitedBlended(Blended):
    """The same, by coroutines. A source without any holds up the others while it reads."""

    async def __getitem__(self, index: int) -> Any:
        source, place = self._find(index)
        return self._finish(source, await result_of(self._datasets[source][place]))

    async def _get_many(self, indices: Sequence[int]) -> list[Any]:
        samples: list[Any] = [None] * len(indices)

        async def ask(source: int, asked: dict[int, int]) -> None:
            many, dataset = self._many[source], self._datasets[source]
            if callable(many):
                found = await result_of(many(list(asked.values())))
            else:
                found = await asyncio.gather(*(result_of(dataset[at]) for at in asked.values()))
            for order, sample in zip(asked, found, strict=True):
                samples[order] = self._finish(source, sample)

        await asyncio.gather(*(ask(*one) for one in self._by_source(indices).items()))
        return samples
