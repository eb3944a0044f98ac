"""Ranks that read a stream end each epoch at the same step."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch.utils.data import IterableDataset, get_worker_info

from swift_loader import SwiftLoader
from swift_loader.errors import ConfigError, EqualStepsError
from tests.ranks import run_ranks

LIMIT_S = 110


class Shards(IterableDataset[int]):
    """The shard of worker `w` of all has ``sizes[w]`` items; raises in the last if negative."""

    def __init__(self, sizes: list[int], rank: int) -> None:
        self.sizes = sizes
        self.rank = rank

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        size = self.sizes[2 * self.rank + worker % 2]
        for item in range(abs(size)):
            if item == -size - 1:
                raise KeyError("broken shard")
            yield item


def loader_of(rank: int, kind: str) -> SwiftLoader:
    sizes = {"empty": [9, 7, 0, 0], "raises": [9, 7, 4, -2]}.get(kind, [9, 7, 4, 2])
    return SwiftLoader(
        Shards, {"sizes": sizes, "rank": rank}, nb_consumer=2, worker_per_consumer=2,
        equal_steps=True, timeout=3 if kind == "stays" else 20, validate=False,
        in_order=kind != "unordered",
    )  # fmt: skip


def train(rank: int, kind: str) -> dict[str, Any]:
    """What one rank sees, in its own process."""
    state: Any = None
    if kind == "resumed":
        with loader_of(rank, kind) as loader:
            iterator = iter(loader)
            for _ in range(2):
                next(iterator)
            state = loader.state_dict()
            del iterator
    steps, states = [], []
    with loader_of(rank, kind) as loader:
        if state is not None:
            loader.load_state_dict(state)
        if kind == "staged":
            loader.start(rank, to_device=lambda batch, device: batch)
        for epoch in range(3):
            count = 0
            for _ in loader:
                count += 1
                state = loader.state_dict()
                states.append(state["delivered"] + len(state["ahead"]))
                if kind == "dies" and rank == 1 and count == 2:
                    os._exit(0)
                if kind == "stays" and rank == 1 and count == 2:
                    time.sleep(8)  # a training step longer than the timeout
                if kind == "leaves" and rank == 1 and count == 2:
                    return {}
                if kind == "breaks" and epoch == 0 and count == 3:
                    break
            steps.append(count)
        end = loader.state_dict()
    return {"steps": steps, "states": states, "end": [end["epoch"], end["delivered"]]}


def trainings(rank: int, *kinds: str) -> list[dict[str, Any]]:
    """What one rank says of each kind of training, one after the other."""
    said = []
    for kind in kinds:
        try:
            said.append(train(rank, kind))
        except EqualStepsError as error:
            said.append({"error": str(error)})
    return said


@pytest.mark.parametrize(
    "wanted",
    [
        {"uneven": [6, 6, 6], "empty": [0, 0, 0], "breaks": [3, 6, 6]},
        {"staged": [6, 6, 6], "unordered": [6, 6, 6], "resumed": [4, 6, 6]},
    ],
    ids=" ".join,
)
def test_ranks_with_uneven_shards_take_equal_steps(wanted: dict[str, list[int]]) -> None:
    for rank in run_ranks(2, trainings, *wanted, timeout_s=LIMIT_S):
        for said, (kind, steps) in zip(rank, wanted.items(), strict=True):
            first = 2 if kind == "resumed" else 0
            counts = [range(first, first + steps[0]), *map(range, steps[1:])]
            assert said["steps"] == steps, kind
            # What a shard that has ended never gives may be passed over, one number at most here.
            beyond = np.subtract(said["states"], [k + 1 for count in counts for k in count])
            assert set(beyond.tolist()) <= {0, 1}, kind
            if sum(steps):
                assert beyond[0] == 0, kind
            assert said["end"] == [3, 0], kind


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("dies", "lost another rank"),
        ("stays", "lost another rank"),
        ("leaves", "not at the same batch|lost another rank"),
        ("raises", "rank 1: KeyError: 'broken shard'|lost another rank"),
    ],
)
def test_a_rank_that_does_not_come_is_an_error_on_the_other(kind: str, says: str) -> None:
    first, _ = run_ranks(2, trainings, kind, timeout_s=LIMIT_S)
    assert re.search(says, first[0]["error"])


def test_a_map_style_dataset_has_equal_steps_already() -> None:
    with pytest.raises(ConfigError, match="the plan already gives equal steps"):
        SwiftLoader.from_dataset(list(range(9)), equal_steps=True)


def test_equal_steps_need_a_rank_a_consumer() -> None:
    loader = SwiftLoader(
        Shards, {"sizes": [2, 2, 2, 2], "rank": 0}, nb_consumer=2, equal_steps=True
    )
    with loader, pytest.raises(ConfigError, match="init_process_group"):
        loader.start(0)


@pytest.mark.timeout(60)
def test_one_consumer_needs_nobody_to_agree_with() -> None:
    with SwiftLoader(Shards, {"sizes": [3, 3], "rank": 0}, equal_steps=True) as loader:
        assert len(list(loader)) == 3
