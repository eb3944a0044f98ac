"""Seeds for a graph of pipes: one number in, a stream of numbers out for each process.

A `SeedGenerator` holds two streams. The *shared* one is equal in all processes that were given the
same seed, whatever `spawn` did: what stands before a sharding pipe must draw from it, so that all
shards cut the same order. The *worker* one differs between spawned generators: what stands after
draws from it.

Both are counter based (Philox, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011;
numpy's implementation): a stream is a key and a count, so that spawning needs no drawing, and what
a child yields depends on the seed and the path of spawn numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["SeedGenerator", "dist_share_seed", "epoch_seed", "torch_is_fresh", "torch_seed"]

_NB_SEED = 2**64
_Key = tuple[int, int]  # Philox4x64 takes two 64-bit words

# What the second word of Philox's counter is used for: draws of different kinds never meet.
_DRAW, _SPAWN, _EPOCH = 0, 1, 2


def _philox(key: _Key, kind: int, count: int, nb_word: int) -> tuple[int, ...]:
    """`nb_word` random 64-bit words that are a function of the arguments."""
    counter = np.array([count, kind, 0, 0], dtype=np.uint64)
    generator = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=counter)
    return tuple(int(word) for word in generator.random_raw(nb_word))


def _checked_seed(seed: int) -> int:
    """`seed` as an unsigned 64-bit number; negative ones wrap round.

    Raises `ValueError` from 2**64 on.
    """
    if seed >= _NB_SEED:
        raise ValueError(f"Expected a uint64 seed (below 2**64), but got {seed}.")
    return seed % _NB_SEED


def torch_seed() -> int:
    """A uint64 that torch's global CPU generator would give next, without advancing it."""
    generator = torch.Generator()
    generator.set_state(torch.get_rng_state())
    return int(torch.randint(-(2**63), 2**63 - 1, (), generator=generator).item()) + 2**63


def torch_is_fresh() -> bool:
    """Has nothing been drawn from torch's global CPU generator since it was seeded?"""
    fresh = torch.Generator().manual_seed(torch.initial_seed())
    return torch.equal(fresh.get_state(), torch.get_rng_state())


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch (from 0) of a run with one seed. Epoch 0 takes the seed itself."""
    seed = _checked_seed(seed)
    return seed if epoch == 0 else _philox((seed, 0), _EPOCH, epoch, 1)[0]


@dataclass(frozen=True)
class _Stream:
    """A row of random words: draw number `nb_drawn` is a function of `key` and of it alone."""

    key: _Key
    nb_drawn: int = 0

    def draw(self) -> tuple[int, _Stream]:
        """The next word, and the stream after it."""
        word = _philox(self.key, _DRAW, self.nb_drawn, 1)[0]
        return word, replace(self, nb_drawn=self.nb_drawn + 1)

    def child(self, number: int) -> _Stream:
        """A stream of its own for `number`, the same however much was drawn here."""
        first, second = _philox(self.key, _SPAWN, number, 2)
        return _Stream((first, second))


class SeedGenerator:
    """Hands out uint64 seeds that are a function of one seed and of the spawn numbers.

    `seed`: below 2**64; negative ones wrap round; `None` takes what torch's global generator would
    give next (which is not advanced). Pickles; a copy goes on where the original stood.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._shared = self._worker = _Stream((0, 0))
        self.seed(seed)

    def seed(self, seed: int | None = None) -> None:
        """Start again from `seed`; undoes every in-place spawn. `ValueError` from 2**64 on."""
        seed = torch_seed() if seed is None else _checked_seed(seed)
        self._shared = self._worker = _Stream((seed, 0))

    def generate_shared_seed(self) -> int:
        """The next uint64 that all generators with this seed agree on, spawned ones too."""
        seed, self._shared = self._shared.draw()
        return seed

    def generate_seed(self) -> int:
        """The next uint64 of this process (rank, worker) alone."""
        seed, self._worker = self._worker.draw()
        return seed

    def spawn(self, worker_id: int, inplace: bool = False) -> SeedGenerator:
        """The generator of child `worker_id` (from 0, `ValueError` below); `inplace` becomes it.

        The child's shared stream goes on where this one stands; its worker stream is its own.
        """
        if worker_id < 0:
            raise ValueError(f"Expected `worker_id` equal or larger than 0, but got {worker_id}.")
        child = self if inplace else SeedGenerator(0)
        child._shared, child._worker = self._shared, self._worker.child(worker_id)
        return child

    def __getstate__(self) -> tuple[_Stream, _Stream]:
        return self._shared, self._worker

    def __setstate__(self, state: tuple[_Stream, _Stream]) -> None:
        self._shared, self._worker = state


def dist_share_seed(seed: int, process_group: ProcessGroup | None = None) -> int:
    """Rank 0's `seed` (uint64), on every rank of `process_group`. A collective call."""
    # int64 travels everywhere; uint64 does not.
    shared = torch.tensor(seed - 2**63, dtype=torch.int64)
    torch.distributed.broadcast(shared, src=0, group=process_group)
    return int(shared.item()) + 2**63
