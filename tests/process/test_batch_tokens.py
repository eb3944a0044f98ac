"""`batch_tokens` with real workers."""

from __future__ import annotations

import re
from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from swift_loader import ConfigError, StateError, SwiftLoader
from tests import datasets

pytestmark = pytest.mark.usefixtures("shared_zygote")

LENGTHS = np.random.default_rng(3).integers(1, 100, 101)


def loader(**options: Any) -> SwiftLoader:
    given = {"batch_tokens": 400, "lengths": LENGTHS, "shuffle": True, "validate": False}
    return SwiftLoader(datasets.Numbers, {"n": 101}, **{**given, **options})


def samples(batch: Any) -> list[int]:
    found: list[int] = batch[1].tolist()
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_stay_within_the_budget_and_all_samples_come(workers: int) -> None:
    with loader(worker_per_consumer=workers) as one:
        epochs = [[samples(batch) for batch in one] for _ in range(2)]
        assert len(one) == len(epochs[0]) == len(epochs[1])
    for batches in epochs:
        assert Counter(chain.from_iterable(batches)) == Counter(range(101))
        assert all(LENGTHS[batch].max() * len(batch) <= 400 for batch in batches)
    assert epochs[0] != epochs[1]


def test_stopped_with_three_consumers_it_goes_on_with_two() -> None:
    seen: Counter[int] = Counter()
    states = []
    steps = set()
    for consumer in range(3):
        with loader(nb_consumer=3, worker_per_consumer=2) as one:
            one.start(consumer)
            steps.add(len(one))
            iterator = iter(one)
            for _ in range(2):
                seen.update(samples(next(iterator)))
            states.append(one.state_dict())
    assert len(steps) == 1
    for consumer in range(2):
        with loader(nb_consumer=2) as one:
            one.load_state_dict(states)
            one.start(consumer)
            for batch in one:
                seen.update(samples(batch))
    assert seen == Counter(range(101))


@pytest.mark.parametrize("seed", range(8))
def test_consumers_make_equal_steps_where_only_one_batch_can_be_split(seed: int) -> None:
    lengths = [20] * 4 + [2, 2]
    steps = []
    for consumer in range(2):
        options = {"batch_tokens": 20, "nb_consumer": 2, "worker_per_consumer": 0, "seed": seed}
        with SwiftLoader(list(range(6)), lengths=lengths, shuffle=True, **options) as one:
            one.start(consumer)
            steps.append(len([*one]))
    assert steps == [3, 3]


def test_torch_collects_the_same_multiset() -> None:
    dataset = datasets.Numbers(101)
    torchs = torch.utils.data.DataLoader(dataset, batch_size=5)  # type: ignore[arg-type]
    with loader() as one:
        ours, theirs = (sorted(chain.from_iterable(map(samples, each))) for each in (one, torchs))
    assert ours == theirs


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lengths": None}, "give lengths= too"),
        ({"batch_tokens": None}, "for batch_tokens"),
        ({"batch_tokens": 50}, "sample [0-9]+ alone has 97 tokens"),
        ({"batch_size": 8}, "leave batch_size out"),
        ({"batch_size": None}, "leave batch_size out"),
        ({"tail": "drop"}, "leave tail out"),
        ({"shuffle": False, "sampler": [1]}, "leave sampler out"),
        ({"lengths": [0.5]}, "whole number a sample"),
        ({"lengths": LENGTHS[:-1]}, "the data set has 101 samples"),
    ],
)
def test_what_can_not_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.compile(words)):
        with loader(**options) as one:
            one.start(0)


def test_a_state_without_a_budget_is_refused() -> None:
    with SwiftLoader(datasets.Numbers, {"n": 101}, batch_size=4) as other:
        state = other.state_dict()
    with loader() as one:
        with pytest.raises(StateError, match="a loader with an order of its own"):
            one.load_state_dict(state)
            one.start(0)
