"""Batches whose samples are begun before their turn."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from swift_loader.batch.asynchronous import Upcoming


class Begins:
    """Notes down which samples were begun, in their order."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, indices: list[int]) -> list[Future[Any]]:
        self.seen += indices
        futures: list[Future[Any]] = [Future() for _ in indices]
        for future, index in zip(futures, indices, strict=True):
            future.set_result(index)
        return futures


def batches(count: int, size: int) -> list[list[int]]:
    return [list(range(k * size, (k + 1) * size)) for k in range(count)]


@pytest.mark.parametrize(("size", "at_once"), [(8, 512), (100, 500), (300, 600), (2000, 4000)])
def test_some_hundred_samples_or_two_batches_are_under_way(size: int, at_once: int) -> None:
    begins = Begins()
    upcoming = Upcoming(begins)
    wanted = batches(80, size)
    held = [upcoming.want(indices) for indices in wanted]
    for k, (batch, indices) in enumerate(zip(held, wanted, strict=True)):
        assert len(begins.seen) == min(80 * size, k * size + at_once)
        assert [future.result() for future in upcoming.take(batch)] == indices
    assert begins.seen == [index for indices in wanted for index in indices]


def test_batches_that_are_passed_over_hold_up_nothing() -> None:
    begins = Begins()
    upcoming = Upcoming(begins)
    held = [upcoming.want(indices) for indices in batches(10, 512)]
    last = upcoming.take(held[8])  # it was not begun, as the others had not had their turn
    assert [future.result() for future in last] == list(range(8 * 512, 9 * 512))
    assert begins.seen[-512:] == list(range(9 * 512, 10 * 512))
