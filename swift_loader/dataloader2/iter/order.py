"""Pipes that change the order by chance, or deal items out by chance."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.utils.common import _check_unpickable_fn

from swift_loader.dataloader2.columns import call_on_columns
from swift_loader.dataloader2.randomness import RandomPipe
from swift_loader.dataloader2.registry import functional_datapipe

__all__ = ["InBatchShuffler", "RandomSplitter", "ShuffledFlatMapper", "random_split"]

T = TypeVar("T")


@functional_datapipe("in_batch_shuffle")
class InBatchShuffler(RandomPipe[list[T]]):
    """Shuffles inside each batch, not between them (`.in_batch_shuffle`).

    Each batch becomes a new one of its own type.
    """

    def __init__(self, datapipe: IterDataPipe[list[T]]) -> None:
        super().__init__()
        self.datapipe = datapipe

    def __iter__(self) -> Iterator[list[T]]:
        for batch in self.datapipe:
            if self._enabled:
                yield type(batch)(self._rng.sample(batch, len(batch)))
            else:
                yield batch

    def __len__(self) -> int:
        return len(self.datapipe)


@functional_datapipe("shuffled_flatmap")
class ShuffledFlatMapper(RandomPipe[Any]):
    """`flatmap` that mixes what up to `buffer_size` items give (`.shuffled_flatmap`).

    Keeps that many open iterables `fn(item)`, and yields the next element of one chosen by chance;
    elements of one item keep their order. An exhausted iterable makes room for the next item.
    Without a length unless `fn` is `None` and the source was a sequence of sized items: use
    `set_length`.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[..., Iterable[Any]] | None = None,
        input_col: Any = None,
        buffer_size: int = 100,
    ) -> None:
        super().__init__()
        if buffer_size <= 0:
            raise ValueError(
                f"'buffer_size' is required to be a positive integer, got {buffer_size}"
            )
        if fn is not None:
            _check_unpickable_fn(fn)
        self.datapipe = datapipe
        self.fn = fn
        self.input_col = input_col
        self.buffer_size = buffer_size

    def __iter__(self) -> Iterator[Any]:
        opened = map(self._open, self.datapipe)
        if not self._enabled:
            yield from itertools.chain.from_iterable(opened)
            return
        mixed = list(itertools.islice(opened, self.buffer_size))
        while mixed:
            i = self._rng.randrange(len(mixed))
            try:
                element = next(mixed[i])
            except StopIteration:
                # In the place of an exhausted one comes a new one, or else the last.
                mixed[i] = mixed[-1]
                mixed.pop()
                mixed.extend(itertools.islice(opened, 1))
            else:
                yield element

    def _open(self, item: Any) -> Iterator[Any]:
        return iter(item if self.fn is None else call_on_columns(self.fn, item, self.input_col))

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__}'s length relies on the output of its function.")


class _Dealer(IterDataPipe[tuple[Any, T]], Generic[T]):
    """Yields `(group, item)`; the group of item i is a function of the seed, the weights and i."""

    def __init__(
        self,
        source_datapipe: IterDataPipe[T],
        weights: dict[Any, int | float],
        seed: int,
        total_length: int | None,
    ) -> None:
        self.source_datapipe = source_datapipe
        self.weights = weights
        self.seed = seed
        # Integer weights that add up to the length are counts to be met exactly.
        self.exact = total_length == sum(weights.values()) and all(
            isinstance(weight, int) for weight in weights.values()
        )

    def __iter__(self) -> Iterator[tuple[Any, T]]:
        rng = random.Random(self.seed)
        groups, left = list(self.weights), list(self.weights.values())
        for item in self.source_datapipe:
            (i,) = rng.choices(range(len(groups)), weights=left if any(left) else None)
            if self.exact:
                left[i] -= 1
            yield groups[i], item


class _Group(IterDataPipe[T], Generic[T]):
    """One group of a random split."""

    def __init__(self, dealer: _Dealer[T], group: Any) -> None:
        self.dealer = dealer
        self.group = group

    def __iter__(self) -> Iterator[T]:
        for group, item in self.dealer:
            if group == self.group:
                yield item

    def override_seed(self, seed: int) -> _Group[T]:
        """Split by `seed` from the next iteration on, in all groups of the split."""
        self.dealer.seed = seed
        return self

    def __len__(self) -> int:
        if not self.dealer.exact:
            raise TypeError(
                "The length of a split is not known in advance. Give integer `weights` that sum up "
                "to `total_length`, or use `set_length` on the split."
            )
        return int(self.dealer.weights[self.group])


@functional_datapipe("random_split")
def random_split(
    source_datapipe: IterDataPipe[T],
    weights: dict[Any, int | float],
    seed: int,
    total_length: int | None = None,
    target: Any = None,
) -> IterDataPipe[T] | list[IterDataPipe[T]]:
    """Splits the source into disjoint, complete groups by chance (`.random_split`).

    `weights`: group -> weight. `total_length`: of the source; by default its `len`, where it has
    one. With integer weights that sum up to it the groups have exactly those lengths. Returns a
    list of pipes in the order of `weights`, or the one pipe of group `target`.

    The split is the same in all epochs (it has no `set_seed` for a loader to find); `override_seed`
    of a group changes it for all. Each group runs through the whole source, so they can be iterated
    one after the other only.
    """
    if not weights:
        raise ValueError("random_split needs at least one group in `weights`")
    if target is not None and target not in weights:
        raise KeyError(f"`target` {target!r} is not among the groups {list(weights)}")
    if total_length is None:
        try:
            total_length = len(source_datapipe)
        except TypeError:
            total_length = None
    dealer = _Dealer(source_datapipe, dict(weights), seed, total_length)
    if target is not None:
        return _Group(dealer, target)
    return [_Group(dealer, group) for group in weights]


RandomSplitter = random_split
