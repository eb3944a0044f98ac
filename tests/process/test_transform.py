"""`transform`: once for each use of a sample, before collate, drawn from as everywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from swift_loader import SwiftLoader, WorkerError
from tests import datasets

pytestmark = pytest.mark.usefixtures("nothing_left")


class AtOnce(datasets.Numbers):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[i] for i in indices]


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (datasets.Numbers(24)[i] for i in range(24))


def draw(sample: tuple[torch.Tensor, int]) -> dict[str, Any]:
    row, index = sample
    if index == 17:
        raise ValueError("17 is not to be had")
    return {"row": row[0].item(), "draw": [random.random(), np.random.rand(), torch.rand(1).item()]}


class WithEpoch:
    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __call__(self, sample: Any) -> int:
        return self.epoch


def batches(kind: Any, **options: Any) -> list[Any]:
    kwargs = {} if kind is Stream else {"n": 24}
    options = {"batch_size": 4, "transform": draw, "on_error": "skip", "seed": 3, **options}
    if kind is not Stream:
        options["shuffle"] = True
    with SwiftLoader(kind, kwargs, **options) as loader:
        return [
            (batch["row"].tolist(), [part.tolist() for part in batch["draw"]])
            for _ in range(2)
            for batch in loader
        ]


def test_draws_are_those_of_the_batch_however_samples_are_fetched() -> None:
    want = batches(datasets.Numbers, worker_per_consumer=0)
    assert sorted(row for rows, _ in want for row in rows) == sorted(
        [float(i) for i in range(24) if i != 17] * 2
    )
    draws = [draw for _, parts in want for part in parts for draw in part]
    assert len(set(draws)) == len(draws)
    assert batches(datasets.Numbers, worker_per_consumer=2) == want
    assert batches(datasets.Numbers, threads_per_worker=3) == want
    assert batches(AtOnce) == want


def test_items_of_a_stream_pass_it() -> None:
    got = batches(Stream, validate=False)
    assert [row for rows, _ in got for row in rows] == [float(i) for i in range(24) if i != 17] * 2


def test_what_it_raises_names_the_sample() -> None:
    with (
        SwiftLoader(
            datasets.Numbers, {"n": 24}, batch_size=4, transform=draw, validate=False
        ) as loader,
        pytest.raises(ValueError, match="17 is not") as caught,
    ):
        list(loader)
    assert isinstance(caught.value.__cause__, WorkerError)
    assert "sample 17" in str(caught.value.__cause__)


def test_it_is_told_the_epoch() -> None:
    with SwiftLoader(datasets.Numbers, {"n": 4}, batch_size=4, transform=WithEpoch()) as loader:
        assert [[batch.tolist() for batch in loader] for _ in range(2)] == [[[0] * 4], [[1] * 4]]
