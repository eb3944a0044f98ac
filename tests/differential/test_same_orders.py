"""Each kind of sampler and key through both loaders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.differential import samples
from tests.differential.loaders import through_ours, through_torch

pytestmark = [pytest.mark.usefixtures("shared_zygote"), pytest.mark.timeout(60)]

KEYS: dict[str, list[Any]] = {
    "int": [3, 1, 2, 2, 0],
    "negative": [-1, 0, 5],
    "numpy int": list(np.array([3, 1, 2], np.int32)),
    "bool": [True, False],
    "str": ["a", "b", "a", "c"],
    "empty str": ["", "x"],
    "tuple": [(32, 0), (48, 1), (32, 2)],
    "nested": [[0, [1, 2]], [3, [4]]],
    "float": [0.5, 1.5, 2.0],
    "none": [None, None, 1],
    "bytes": [b"k", b""],
    "tensor": [torch.tensor(3), torch.tensor(1)],
    "dict": [{"i": 1}, {"i": 2}],
    "slice": [slice(0, 2), slice(2, 4)],
    "big": [2**70, 1],
}


class Says(Sampler[int]):
    """Says another length than it has."""

    def __init__(self, says: int, gives: int) -> None:
        self.says, self.gives = says, gives

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.gives))

    def __len__(self) -> int:
        return self.says


def both(dataset: Any, **options: Any) -> tuple[Any, Any]:
    return through_torch(dataset, **options)[0], through_ours(dataset, **options)[0]


def test_keys_reach_the_data_set_as_the_sampler_gave_them() -> None:
    options: dict[str, Any] = {
        "batch_sampler": list(KEYS.values()),
        "collate_fn": samples.listed,
    }
    theirs, ours = both(samples.Keyed(), **options)
    assert dict(zip(KEYS, ours.batches, strict=True)) == dict(
        zip(KEYS, theirs.batches, strict=True)
    )


def test_keys_without_batches_reach_the_data_set_as_they_are() -> None:
    options = {"batch_size": None, "sampler": [key for keys in KEYS.values() for key in keys]}
    theirs, ours = both(samples.Keyed(), **options)
    assert ours == theirs


def test_keys_in_batches_of_a_size_reach_the_data_set_as_they_are() -> None:
    options = {"batch_size": 3, "sampler": [key for keys in KEYS.values() for key in keys]}
    theirs, ours = both(samples.Keyed(), collate_fn=samples.listed, **options)
    assert ours == theirs


def test_an_index_that_is_out_of_range_is_the_data_sets_error() -> None:
    options = {"batch_size": 2, "sampler": [1, 2, 3, 99, 5, 6]}
    theirs, ours = both(samples.MapStyle(), **options)
    assert ours == theirs


def test_batches_of_a_batch_sampler_vary_in_size_and_may_be_empty() -> None:
    batches = [[7, 8], [], [9], [0, 1, 2, 3, 4, 5]]
    theirs, ours = both(samples.MapStyle("int"), batch_sampler=batches, collate_fn=samples.listed)
    assert ours == theirs


def test_batches_that_are_generators_are_those_of_torch_without_workers() -> None:
    class Batches:
        def __iter__(self) -> Iterator[Any]:
            return ((i + j for j in range(3)) for i in range(0, 12, 3))

    dataset = samples.MapStyle("int")
    theirs = through_torch(dataset, workers=0, batch_sampler=Batches())[0]  # with some, it hangs
    for workers in (0, 2):
        assert through_ours(dataset, workers=workers, batch_sampler=Batches())[0] == theirs


def test_a_batch_sampler_as_sampler_without_batches_gives_batches() -> None:
    def sampler() -> BatchSampler:
        return BatchSampler(SequentialSampler(range(10)), 4, drop_last=False)

    dataset = samples.Keyed()
    theirs = through_torch(dataset, batch_size=None, sampler=sampler())[0]
    ours = through_ours(dataset, batch_size=None, sampler=sampler())[0]
    assert ours == theirs


@pytest.mark.parametrize(("says", "gives"), [(6, 8), (6, 5), (0, 3), (5, 0), (24, 23)])
def test_a_sampler_with_a_wrong_length_gives_what_it_gives(says: int, gives: int) -> None:
    theirs, ours = both(samples.MapStyle("int"), batch_size=1, sampler=Says(says, gives))
    assert ours.batches == theirs.batches
    assert ours.length == theirs.length


@pytest.mark.parametrize(
    "sampler",
    [
        lambda g: RandomSampler(range(23), generator=g),
        lambda g: RandomSampler(range(23), replacement=True, num_samples=40, generator=g),
        lambda g: SubsetRandomSampler(range(3, 17), generator=g),
        lambda g: WeightedRandomSampler([1.0] * 23, 30, generator=g),
        lambda g: WeightedRandomSampler([1.0] * 23, 20, replacement=False, generator=g),
    ],
    ids=["random", "replacement", "subset", "weighted", "weighted without"],
)
def test_samplers_with_a_generator_draw_what_they_draw_with_torch(sampler: Any) -> None:
    outcomes = []
    for through in (through_torch, through_ours):
        generator = torch.Generator().manual_seed(7)
        made = sampler(generator)
        outcomes.append(through(samples.MapStyle("int"), batch_size=4, sampler=made)[0])
    assert outcomes[0] == outcomes[1]


def test_a_data_set_without_a_length_works_beside_a_sampler() -> None:
    theirs, ours = both(Endless(), batch_size=2, sampler=[5, 1, 100])
    assert ours == theirs


class Endless:
    """A map-style data set without a length."""

    def __getitem__(self, i: int) -> int:
        return 2 * i


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 23, 30])
def test_a_shuffle_gives_the_same_samples_in_batches_of_the_same_sizes(
    batch_size: int, drop_last: bool
) -> None:
    theirs, ours = both(
        samples.MapStyle("int"),
        batch_size=batch_size,
        shuffle=True,
        drop_last=drop_last,
        collate_fn=samples.listed,
    )
    assert list(map(_size, ours.batches)) == list(map(_size, theirs.batches))
    if not drop_last:
        assert _samples(ours) == _samples(theirs)
    assert ours.length == theirs.length


def _size(batch: Any) -> int:
    return len(batch[1])


def _samples(outcome: Any) -> Counter[Any]:
    return Counter(sample for batch in outcome.batches for sample in batch[1])
