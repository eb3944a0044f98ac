"""Data sets whose samples come by coroutines, below wrappers of torch's and in mixtures."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, Subset

from swift_loader import Mixture, SwiftLoader

pytestmark = pytest.mark.usefixtures("nothing_left")


class Bucket:
    """Sample `i` is (start + i, the most that were under way so far). Number `broken` is broken.

    The first samples wait for each other, `together` of them: how soon each one is asked for is
    the machine's affair.
    """

    def __init__(self, n: int, start: int = 0, broken: int = -1, together: int = 1) -> None:
        self.n, self.start, self.broken, self.together = n, start, broken, together
        self.under_way = self.most = 0

    def __len__(self) -> int:
        return self.n

    async def __getitem__(self, i: int) -> tuple[int, int]:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        end = time.monotonic() + 5.0
        while self.most < self.together and time.monotonic() < end:
            await asyncio.sleep(0.001)
        self.under_way -= 1
        if i == self.broken:
            raise OSError(f"no object {i}")
        return self.start + i, self.most


class Listing(Bucket):
    """Samples come by several only."""

    async def __getitems__(self, indices: list[int]) -> list[tuple[int, int]]:
        return list(await asyncio.gather(*(super(Listing, self).__getitem__(i) for i in indices)))

    def __getitem__(self, i: int) -> Any:
        raise AssertionError("asked one by one")


class Plain(Bucket):
    def __getitem__(self, i: int) -> tuple[int, int]:  # type: ignore[override]
        return self.start + i, 0


def seen(dataset: Any, **options: Any) -> tuple[list[int], int]:
    """All first numbers of an epoch, in their order, and the most that were under way."""
    with SwiftLoader(dataset, batch_size=8, **options) as loader:
        batches = list(loader)
    numbers = [number for batch in batches for number in batch[0].tolist()]
    return numbers, max(max(batch[1].tolist()) for batch in batches)


@pytest.mark.parametrize("kind", [Bucket, Listing])
@pytest.mark.parametrize("workers", [0, 1])
def test_samples_below_wrappers_of_torch_are_awaited_together(kind: Any, workers: int) -> None:
    wrapped = Subset(Subset(kind(40, together=8), range(30, -1, -1)), range(16))
    numbers, most = seen(wrapped, worker_per_consumer=workers)
    assert numbers == list(range(30, 14, -1))
    assert most >= 8


def test_those_with_and_without_coroutines_stand_in_one_list() -> None:
    both = ConcatDataset([Bucket(8, together=8), Plain(8, 100), Subset(Bucket(8, 200), [7, 0])])
    numbers, most = seen(both, worker_per_consumer=0)
    assert numbers == [*range(8), *range(100, 108), 207, 200]
    assert most >= 8


@pytest.mark.parametrize("kind", [Bucket, Listing])
def test_sources_of_a_mixture_may_be_awaited(kind: Any) -> None:
    mixture = Mixture({"far": Subset(kind(20, together=2), range(20)), "near": Plain(20, 100)})
    numbers, most = seen(mixture, worker_per_consumer=1, shuffle=True)
    assert sorted(numbers) == [*range(20), *range(100, 120)]
    assert most > 1


class Told(Bucket):
    """A sample says the epoch that the data set was told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    async def __getitem__(self, i: int) -> tuple[int, int]:
        return self.start + i, self.epoch


def test_a_wrapped_source_of_a_mixture_is_told_the_epoch() -> None:
    mixture = Mixture({"far": Subset(Told(4), range(4)), "near": Told(4, 100)})
    with SwiftLoader(mixture, batch_size=4, worker_per_consumer=0) as loader:
        for epoch in range(2):
            assert [batch[1].tolist() for batch in loader] == [[epoch] * 4] * 2


def test_what_a_wrapped_sample_raises_is_its_own() -> None:
    with SwiftLoader(
        Subset(Bucket(8, broken=5), range(8)), batch_size=4, worker_per_consumer=0, on_error="skip"
    ) as loader:
        assert [batch[0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 6, 7]]


def test_a_wrapped_bucket_is_read_ahead_and_kept() -> None:
    numbers, most = seen(
        Subset(Bucket(64, together=9), range(64)),
        worker_per_consumer=1,
        cache="10MB",
        validate=False,  # which asks for one batch alone
    )
    assert numbers == list(range(64))
    assert most > 8
