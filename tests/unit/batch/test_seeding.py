"""Seeding all generators of a process at once."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from swift_loader.batch.seeding import seed_generators


def _draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 + 5, 2**64 - 1])
def test_same_seed_same_draws(seed: int) -> None:
    seed_generators(seed)
    first = _draws()
    _draws()
    seed_generators(seed)
    assert _draws() == first


def test_all_64_bits_count_for_each_generator() -> None:
    seen = []
    for bit in range(64):
        seed_generators(1 << bit)
        seen.append(_draws())
    for draws in zip(*seen[:32], strict=True):
        assert len(set(draws)) == 32
    for low, high in zip(seen[:32], seen[32:], strict=True):
        assert low[0] != high[0]
        assert low[2] != high[2]
