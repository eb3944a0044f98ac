"""An order that the user brings: the order is theirs, the rest is ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from swift_loader import ConfigError, StateError, SwiftLoader
from tests import datasets
from tests.conformance import indices_of
from tests.process.test_crashes import remaining, workers_of

pytestmark = pytest.mark.usefixtures("nothing_left")


def torch_order(sampler: object, batch_size: int) -> list[list[int]]:
    return list(BatchSampler(sampler, batch_size, drop_last=False))  # type: ignore[arg-type]


def random_sampler(n: int) -> RandomSampler:
    return RandomSampler(range(n), generator=torch.Generator().manual_seed(3))


def test_batches_of_a_random_sampler_are_those_of_torch() -> None:
    theirs = random_sampler(50)
    want = [torch_order(theirs, 4) for _ in range(3)]
    with SwiftLoader(
        datasets.Numbers,
        {"n": 50},
        batch_size=4,
        worker_per_consumer=2,
        sampler=random_sampler(50),
    ) as loader:
        assert [[indices_of(batch) for batch in loader] for _ in range(3)] == want
        assert len(loader) == 13


def test_weighted_sampler_may_repeat_and_outrun_the_dataset() -> None:
    weights = [float(i) for i in range(10)]
    sampler = WeightedRandomSampler(weights, 200, generator=torch.Generator().manual_seed(1))
    want = list(WeightedRandomSampler(weights, 200, generator=torch.Generator().manual_seed(1)))
    with SwiftLoader(datasets.Numbers, {"n": 10}, batch_size=8, sampler=sampler) as loader:
        assert len(loader) == 25
        assert remaining(iter(loader)) == want


def test_distributed_sampler_shares_out_and_learns_the_epoch() -> None:
    for rank in range(2):
        sampler = DistributedSampler(range(21), num_replicas=2, rank=rank, seed=7)
        theirs = DistributedSampler(range(21), num_replicas=2, rank=rank, seed=7)
        with SwiftLoader(
            datasets.Numbers, {"n": 21}, batch_size=4, nb_consumer=2, sampler=sampler
        ) as loader:
            loader.start(rank)
            for epoch in range(3):
                theirs.set_epoch(epoch)
                assert [indices_of(batch) for batch in loader] == torch_order(theirs, 4)


class CountsItsEpochs(Sampler[int]):
    """And may be told of one."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield self.epoch
        self.epoch += 1
        yield self.epoch


@pytest.mark.parametrize("in_batches", [False, True])
def test_a_script_that_tells_the_sampler_its_epoch_has_its_word_as_with_torch(
    in_batches: bool,
) -> None:
    def epochs(build: Any) -> list[Any]:
        sampler = DistributedSampler(range(20), 1, 0, seed=7)
        batches = BatchSampler(sampler, 4, drop_last=False)
        options: dict[str, Any] = (
            {"batch_sampler": batches} if in_batches else {"batch_size": 4, "sampler": sampler}
        )
        loader = build(datasets.Numbers(20), num_workers=0, **options)
        found = []
        for epoch in (5, 6, 9, 9):
            sampler.set_epoch(epoch)
            found.append([indices_of(batch) for batch in loader])
        return found

    assert epochs(SwiftLoader) == epochs(DataLoader)


def test_a_sampler_that_counts_its_epochs_is_told_the_loaders() -> None:
    options: dict[str, Any] = {"batch_size": 2, "num_workers": 0, "sampler": CountsItsEpochs()}
    with SwiftLoader(datasets.Numbers(20), **options) as loader:
        found = [[indices_of(batch) for batch in loader] for _ in range(3)]
    assert found == [[[0, 1]], [[1, 2]], [[2, 3]]]


def test_batch_sampler_makes_the_batches() -> None:
    batches = [[0, 5, 9], [1], [2, 2], [8, 7, 6, 5]]
    with SwiftLoader(datasets.Numbers, {"n": 10}, batch_sampler=batches) as loader:
        assert len(loader) == 4
        for _ in range(2):
            assert [indices_of(batch) for batch in loader] == batches


def test_drop_tail_leaves_the_last_short_batch_out() -> None:
    with SwiftLoader(
        datasets.Numbers, {"n": 10}, batch_size=4, sampler=SequentialSampler(range(10)), tail="drop"
    ) as loader:
        assert len(loader) == 2
        assert remaining(iter(loader)) == list(range(8))


class Unsized:
    """An iterable that can't tell its length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(0, 30, 3))


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("staged", [True, False])
def test_sampler_without_a_length_ends_where_it_ends(in_order: bool, staged: bool) -> None:
    with SwiftLoader(
        datasets.Numbers,
        {"n": 30},
        batch_size=4,
        worker_per_consumer=2,
        sampler=Unsized(),
        in_order=in_order,
    ) as loader:
        loader.start(0, to_device=(lambda batch, device: batch) if staged else None)
        for _ in range(3):
            assert sorted(remaining(iter(loader))) == list(range(0, 30, 3))
        with pytest.raises(TypeError, match="without a length"):
            len(loader)


def test_killed_worker_changes_nothing() -> None:
    want = list(random_sampler(200))
    with SwiftLoader(
        datasets.Numbers,
        {"n": 200},
        batch_size=3,
        worker_per_consumer=2,
        data_queue_size=10,
        sampler=random_sampler(200),
    ) as loader:
        iterator = iter(loader)
        got = [i for _ in range(7) for i in indices_of(next(iterator))]
        for process in workers_of(loader):
            process.kill()
        assert got + remaining(iterator) == want


def test_state_resumes_in_mid_epoch_with_the_same_sampler() -> None:
    def build() -> SwiftLoader:
        sampler = DistributedSampler(range(40), num_replicas=1, rank=0, seed=5)
        return SwiftLoader(
            datasets.Augmented, {"n": 40}, batch_size=4, worker_per_consumer=2, sampler=sampler
        )

    with build() as loader:
        whole = [[batch["random"].tolist() for batch in loader] for _ in range(3)]
    with build() as loader:
        list(loader)
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
    with build() as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert [batch["random"].tolist() for batch in loader] == whole[1][4:]
        assert [batch["random"].tolist() for batch in loader] == whole[2]


def test_state_of_a_plan_is_refused() -> None:
    with SwiftLoader(datasets.Numbers, {"n": 8}) as loader:
        state = loader.state_dict()
    with (
        SwiftLoader(datasets.Numbers, {"n": 8}, sampler=range(8)) as loader,
        pytest.raises(StateError, match="sampler"),
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sampler": 5}, "sampler"),
        ({"sampler": range(4), "shuffle": True}, "shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler"),
        ({"batch_sampler": [[0]], "sampler": range(4)}, "batch_sampler"),
    ],
)
def test_contradicting_options_are_named(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SwiftLoader(datasets.Numbers, {"n": 4}, **options)  # type: ignore[arg-type]
