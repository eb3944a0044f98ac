"""`with_options`: a second loader beside the first one."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import TensorDataset

from swift_loader import ClosedError, ConfigError, SwiftLoader
from tests import datasets
from tests.process.test_crashes import all_workers_of

pytestmark = pytest.mark.usefixtures("nothing_left")


def indices(loader: Any) -> list[int]:
    return [i for batch in loader for i in batch[1].tolist()]


def test_validation_beside_training_is_of_its_own_and_does_not_disturb_it() -> None:
    with SwiftLoader(
        datasets.Numbers, {"n": 40}, 4, num_workers=2, shuffle=True, seed=3, tail="drop"
    ) as alone:
        wanted = [indices(alone), indices(alone)]
    with (
        SwiftLoader(
            datasets.Numbers, {"n": 40}, 4, num_workers=2, shuffle=True, seed=3, tail="drop"
        ) as train,
        train.with_options(dataset_kwargs={"n": 6}, shuffle=False, drop_last=False) as val,
    ):
        got: list[list[int]] = []
        for _ in range(2):
            got.append([])
            for batch in train:
                got[-1] += batch[1].tolist()
                if len(got[-1]) in (8, 20):
                    assert indices(val) == list(range(6))
        assert got == wanted
        assert (val.num_workers, val.batch_size, val.drop_last) == (2, 4, False)


def test_workers_of_both_descend_from_one_process() -> None:
    with SwiftLoader(datasets.Numbers, {"n": 8}, 4) as one, one.with_options(shuffle=True) as two:
        one.start()
        two.start()
        workers = [{each.pid for each in all_workers_of(loader, 1)} for loader in (one, two)]
        assert workers[0].isdisjoint(workers[1])
        parents = {psutil.Process(pid).ppid() for pid in workers[0] | workers[1]}
        assert len(parents) == 1


def test_what_is_large_is_in_memory_once() -> None:
    rows = {"it": np.ones((2_000_000, 1))}
    with (
        SwiftLoader(datasets.OverArray, rows, 4) as one,
        one.with_options(batch_size=8, shuffle=True) as two,
        one.with_options(batch_size=8, transform=str) as three,
    ):
        inodes = [os.fstat(loader._engine.payload_fd).st_ino for loader in (one, two, three)]
        assert inodes[0] == inodes[1] != inodes[2]
        one.close()
        assert len(next(iter(two))) == 8


def test_workers_of_both_keep_samples_where_their_own_loader_looks() -> None:
    with (
        SwiftLoader(datasets.Numbers, {"n": 8}, 4, cache="1MB") as one,
        one.with_options(nb_consumer=2) as two,  # who shares a store depends on that
    ):
        two.start(0)
        assert [len(batch[1]) for _ in range(3) for batch in two] == [4, 4, 4]
        cache = two.stats().cache
        assert cache is not None
        assert cache.misses > 0


def test_data_set_that_is_built_is_taken_over_or_changed() -> None:
    rows = TensorDataset(torch.zeros(12, 2), torch.arange(12))
    others = TensorDataset(torch.zeros(3, 2), torch.arange(3))
    with SwiftLoader(rows, batch_size=4, num_workers=0) as one:
        with one.with_options(worker_per_consumer=1) as two:
            assert two.dataset is rows
            assert two.num_workers == 1
            assert indices(two) == list(range(12))
        with one.with_options(dataset=others, num_workers=0) as three:
            assert indices(three) == list(range(3))
        with one.with_options(dataset_class=datasets.Numbers, dataset_kwargs={"n": 2}) as four:
            assert indices(four) == [0, 1]


def test_wrong_changes_are_named() -> None:
    with SwiftLoader(datasets.Numbers, {"n": 8}, 4, num_workers=0) as loader:
        with pytest.raises(ConfigError, match="did you mean 'batch_size'"):
            loader.with_options(batch_sise=2)  # type: ignore[call-arg]
        with pytest.raises(ConfigError, match="batch_size=0"):
            loader.with_options(batch_size=0)
        with pytest.raises(ConfigError, match="sampler says the order"):
            loader.with_options(sampler=range(3), shuffle=True)
    with pytest.raises(ClosedError, match="closed"):
        loader.with_options(batch_size=2)
