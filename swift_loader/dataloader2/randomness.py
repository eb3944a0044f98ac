"""What every random pipe has: `set_seed`, `set_shuffle`, and a generator that `reset` seeds.

The protocol is torch's: a loader finds random pipes by their `set_seed`, and calls it before each
epoch. Unseeded, a pipe draws its seed from torch's global generator at each reset.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch.utils.data import IterDataPipe
from typing_extensions import Self

__all__ = ["RandomPipe"]

T_co = TypeVar("T_co", covariant=True)


class RandomPipe(IterDataPipe[T_co]):
    """Base of the random pipes. Subclasses draw from `self._rng`, in `__iter__` only."""

    def __init__(self) -> None:
        self._rng = random.Random()
        self._seed: int | None = None
        self._enabled = True

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError

    def set_seed(self, seed: int) -> Self:
        """Make the next iteration (one) a function of `seed`."""
        self._seed = seed
        return self

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """`False`: keep the order of the source."""
        self._enabled = shuffle
        return self

    def reset(self) -> None:
        """Seed the generator for the iteration that begins. Called by torch at each `iter`."""
        if self._seed is None:
            self._seed = int(torch.empty((), dtype=torch.int64).random_().item())
        self._rng.seed(self._seed)
        self._seed = None
