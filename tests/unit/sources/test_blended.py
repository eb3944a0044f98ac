"""What a worker builds of a `Mixture`."""

from __future__ import annotations

from typing import Any

import pytest

from swift_loader import Mixture, Source

LENGTHS = {"a": 3, "b": 1, "c": 4}


def negative(sample: int) -> int:
    return -sample


def mixture(**options: Any) -> Mixture:
    sources = {name: Source(range(10, 10 + n)) for name, n in LENGTHS.items()}
    return Mixture({**sources, "c": Source(range(10, 14), transform=negative)}, **options)


def test_indices_count_through_the_sources() -> None:
    dataset = mixture()()
    assert len(dataset) == 8
    assert [dataset[index] for index in range(8)] == [10, 11, 12, 10, -10, -11, -12, -13]
    assert [dataset.samples_of_same_source(index) for index in (0, 2, 3, 4, 7)] == [
        *[range(3)] * 2,
        range(3, 4),
        *[range(4, 8)] * 2,
    ]


@pytest.mark.parametrize("with_source", [False, True])
def test_samples_of_a_batch_are_those_one_by_one(with_source: bool) -> None:
    dataset = mixture(with_source=with_source)()
    indices = [4, 0, 7, 3, 2, 4]
    samples: list[Any] = ["one before"]
    progress = [-1]
    dataset.append_each(indices, samples, progress)
    assert samples[1:] == [dataset[index] for index in indices]
    assert progress == [4]
    if with_source:
        assert samples[1:3] == [(-10, "c"), (10, "a")]


@pytest.mark.parametrize("missing", [-1, 8])
def test_an_index_that_there_is_not(missing: int) -> None:
    dataset = mixture()()
    samples: list[Any] = []
    progress = [-1]
    with pytest.raises(IndexError, match=rf"sample {missing} is not in \[0, 8\)"):
        dataset.append_each([1, missing, 2], samples, progress)
    assert (samples, progress) == ([11], [missing])
    with pytest.raises(IndexError, match=rf"sample {missing} is not in \[0, 8\)"):
        dataset[missing]
