"""Seeds: what is shared, what differs, and what is a function of what."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swift_loader.dataloader2.random import SeedGenerator, epoch_seed, torch_seed

seeds = st.integers(-(2**63), 2**64 - 1)


def shared(generator: SeedGenerator, n: int = 4) -> list[int]:
    return [generator.generate_shared_seed() for _ in range(n)]


def own(generator: SeedGenerator, n: int = 4) -> list[int]:
    return [generator.generate_seed() for _ in range(n)]


@given(seeds, st.integers(0, 2**32))
def test_spawned_generators_share_one_stream_and_have_their_own(seed: int, worker: int) -> None:
    parent = SeedGenerator(seed)
    child, other = parent.spawn(worker), parent.spawn(worker + 1)
    assert shared(child) == shared(other) == shared(SeedGenerator(seed))
    streams = own(child) + own(other) + own(SeedGenerator(seed))
    assert len(set(streams)) == len(streams)
    assert all(0 <= value < 2**64 for value in streams)


@given(seeds)
def test_the_same_seed_gives_the_same_streams(seed: int) -> None:
    first, second = SeedGenerator(seed), SeedGenerator(1)
    second.seed(seed)
    assert (shared(first), own(first)) == (shared(second), own(second))


def test_what_a_child_draws_does_not_depend_on_what_was_drawn_before() -> None:
    parent = SeedGenerator(3)
    before = own(parent.spawn(2))
    own(parent)
    assert own(parent.spawn(2)) == before


def test_a_child_goes_on_with_the_shared_stream() -> None:
    parent, twin = SeedGenerator(3), SeedGenerator(3)
    shared(parent, 2)
    assert shared(parent.spawn(0), 2) == shared(twin, 4)[2:]


def test_spawning_in_place_changes_the_generator_and_nests() -> None:
    generator = SeedGenerator(3)
    assert generator.spawn(1, inplace=True) is generator
    assert own(generator.spawn(0)) == own(SeedGenerator(3).spawn(1).spawn(0))
    assert own(generator.spawn(0)) != own(SeedGenerator(3).spawn(0).spawn(1))


def test_a_copy_goes_on_where_the_original_stands() -> None:
    generator = SeedGenerator(3)
    shared(generator)
    own(generator, 1)
    copy = pickle.loads(pickle.dumps(generator))
    assert (shared(copy), own(copy)) == (shared(generator), own(generator))


def test_bad_seeds_and_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="uint64"):
        SeedGenerator(2**64)
    with pytest.raises(ValueError, match="worker_id"):
        SeedGenerator(0).spawn(-1)


def test_unseeded_it_follows_torchs_generator_and_leaves_it_alone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert shared(SeedGenerator()) == shared(SeedGenerator(torch_seed()))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    other = torch_seed()
    torch.manual_seed(1)
    assert torch_seed() != other


@given(seeds)
def test_epochs_of_one_seed_differ_and_the_first_is_the_seed(seed: int) -> None:
    values = [epoch_seed(seed, epoch) for epoch in range(20)]
    assert values[0] == seed % 2**64
    assert len(set(values)) == 20
