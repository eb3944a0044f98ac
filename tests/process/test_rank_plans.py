"""Ranks that would give samples twice or never are told what differs, before the first batch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset, random_split

from swift_loader import Mixture, Packed, PlanMismatchError, SwiftLoader
from tests.ranks import run_ranks

LENGTHS = [5, 7, 9, 4, 8, 6, 3, 9] * 4
OPTIONS: dict[str, Any] = {
    "nb_consumer": 2, "worker_per_consumer": 0, "validate": False, "seed": 3, "batch_size": 2,
}  # fmt: skip


class Documents:
    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> Any:
        return np.arange(self.lengths[i])


def packed(other: bool, what: str) -> Any:
    """As on all ranks, or with one thing otherwise that leaves the number of sequences as it is."""
    lengths = LENGTHS[::-1] if other and what == "lengths" else LENGTHS
    given: dict[str, Any] = {"length": 16, "separator": 1}
    if other:
        given |= {
            "separator": {"separator": 2},
            "fields": {"fields": ["tokens"]},
            "seed": {"seed": 1},
        }.get(what, {})
    made = Packed(Documents(lengths), shuffle_documents=True, **given)
    if what == "source":
        return Mixture({"a": (made, 1), "b": ([0, 1], 1)}, with_source=other)
    return made


def differs(rank: int, what: str) -> str:
    try:
        with SwiftLoader(packed(rank == 1, what), **OPTIONS) as loader:
            loader.start(rank)
    except PlanMismatchError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("what", "words"),
    [("lengths", "lengths"), ("seed", "seed"), ("source", "with_source")]
    + [pytest.param(what, what, marks=pytest.mark.soak) for what in ("separator", "fields")],
)
def test_what_sequences_are_made_of_must_be_alike(what: str, words: str) -> None:
    for said in run_ranks(2, differs, what):
        assert f"the data set: {words} is" in said


def begins(rank: int, steps: tuple[int, int]) -> tuple[list[str], int]:
    """A rank that goes on after so many steps; what it was warned of, and how many were left."""
    with SwiftLoader(list(range(40)), **OPTIONS) as loader:
        state = loader.state_dict()
        state.update(consumer=rank, delivered=steps[rank])
    with (
        warnings.catch_warnings(record=True) as caught,
        SwiftLoader(list(range(40)), **OPTIONS) as loader,
    ):
        warnings.simplefilter("always")
        if steps[rank]:
            loader.load_state_dict(state)
        loader.start(rank)
        left = sum(1 for _ in loader)
    return [str(one.message) for one in caught], left


@pytest.mark.parametrize("steps", [(0, 4), (3, 4)])
def test_ranks_that_go_on_at_different_steps_are_warned_of(steps: tuple[int, int]) -> None:
    for said, _ in run_ranks(2, begins, steps):
        assert any("go on at different places" in one for one in said)
        assert any("the first batch is" in one for one in said)


def test_ranks_that_go_on_at_one_step_are_not() -> None:
    assert run_ranks(2, begins, (4, 4)) == [([], 6), ([], 6)]


def part_of(rank: int, kind: str) -> Any:
    """Half of the data, another one on each rank."""
    everything = list(range(12))
    match kind:
        case "subset":
            return Subset(Documents(everything), everything[rank::2])
        case "tensors":
            return ConcatDataset([TensorDataset(torch.arange(12)[rank::2])])
        case "list":
            return everything[rank::2]
        case "split without a seed":
            torch.manual_seed(rank)
            return random_split(everything, [6, 6])[0]
        case "table":
            from datasets import Dataset
            from datasets.distributed import split_dataset_by_node

            return split_dataset_by_node(Dataset.from_dict({"i": everything}), rank, 2)
    raise ValueError(kind)


def deals(rank: int, kind: str, alike: bool) -> list[str]:
    """What a rank is warned of."""
    dataset = part_of(0 if alike else rank, kind)
    with warnings.catch_warnings(record=True) as caught, SwiftLoader(dataset, **OPTIONS) as loader:
        warnings.simplefilter("always")
        loader.start(rank)
    return [str(one.message) for one in caught]


KINDS = ("subset", "tensors", "list", "split without a seed", "table")


@pytest.mark.parametrize("kind", KINDS)
def test_data_set_that_is_split_by_rank_already_is_warned_of(kind: str) -> None:
    for rank, said in enumerate(run_ranks(2, deals, kind, False)):
        (text,) = said
        assert f"of rank {rank} holds other samples than that of rank {1 - rank}" in text
        assert "give nb_consumer=1" in text


@pytest.mark.parametrize("kind", KINDS)
def test_data_set_that_is_the_same_on_all_ranks_is_not(kind: str) -> None:
    assert run_ranks(2, deals, kind, True) == [[], []]
