"""Pipes that change the order by chance, or deal items out by chance."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.utils.common import _check_unpickable_fn, validate_input_col

from swift_loader.dataloader2.columns import call_on_columns, fields_of
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
    `input_col`: as for `flatmap`. Has no length (`TypeError`) unless items are taken whole and
    without `fn`: then `len` runs through the source and adds up the lengths of its items.
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
            validate_input_col(fn, input_col)
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
        if self.fn is None:
            return iter(fields_of(item, self.input_col))
        return iter(call_on_columns(self.fn, item, self.input_col))

    def __len__(self) -> int:
        if self.fn is None and self.input_col is None:
            return sum(map(len, self.datapipe))
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
        self.counts = _whole_counts(weights, total_length)  # to be met exactly

    def __iter__(self) -> Iterator[tuple[Any, T]]:
        rng = random.Random(self.seed)
        groups, left = list(self.weights), list(self.weights.values())
        if self.counts is not None:
            left = [self.counts[group] for group in groups]
        for item in self.source_datapipe:
            (i,) = rng.choices(range(len(groups)), weights=left if any(left) else None)
            if self.counts is not None:
                left[i] -= 1
            yield groups[i], item


def _whole_counts(
    weights: dict[Any, int | float], total_length: int | None
) -> dict[Any, int] | None:
    """How many items each group gets, where the weights divide the length into whole numbers."""
    total = sum(weights.values())
    if total_length == 0:
        return dict.fromkeys(weights, 0)
    if total_length is None or not total > 0:
        return None
    shares = {group: total_length * weight / total for group, weight in weights.items()}
    counts = {group: round(share) for group, share in shares.items()}
    if all(math.isclose(shares[group], counts[group], abs_tol=1e-6) for group in weights):
        return counts
    return None


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
        if self.dealer.counts is None:
            raise TypeError(
                "The length of this split is not known in advance: `weights` do not divide "
                "`total_length` into whole numbers, or it is not known. Use `set_length` on it."
            )
        return self.dealer.counts[self.group]


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
    one. Where the weights divide it into whole numbers (0.8 and 0.2 of 1,000), the groups have
    exactly those lengths, and `len`. Returns a list of pipes in the order of `weights`, or the one
    pipe of group `target`.

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
