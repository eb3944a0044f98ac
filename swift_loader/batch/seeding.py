"""Seeds the generators that datasets and collate functions draw from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["generators_untouched", "seed_generators"]


def seed_generators(seed: int) -> None:
    """Seed `random`, `numpy.random` and torch's CPU generator of this process.

    Called in a worker before each batch, so it must be cheap; accelerators are left alone, because
    workers never touch them.

    Parameters
    ----------
    seed:
        A number in [0, 2**64). numpy's legacy generator takes 32 bits; it gets the low half
        mixed with the high half. Torch's gets 63 bits, so that `torch.initial_seed()` fits a
        tensor of int64, as in torch's workers.
    """
    random.seed(seed)
    np.random.seed((seed ^ (seed >> 32)) & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)


@contextmanager
def generators_untouched() -> Iterator[None]:
    """Whatever is drawn inside, and whatever is seeded: afterwards they are as they were."""
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torch_state)
