"""Seeds the generators that datasets and collate functions draw from."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch

__all__ = [
    *("RandomGenerators", "generators_drawn_from", "generators_untouched", "random_generators"),
    *("seed_generators", "seed_own_generators"),
]


class RandomGenerators:
    """Generators of one batch, for `random_generators`. Each is made when it is first asked for.

    Attributes
    ----------
    python:
        A `random.Random`.
    numpy:
        A `numpy.random.Generator`.
    torch:
        A `torch.Generator` of the CPU, for ``generator=``.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @cached_property
    def python(self) -> random.Random:
        return random.Random(self._seed)

    @cached_property
    def numpy(self) -> np.random.Generator:
        return np.random.default_rng(self._seed)

    @cached_property
    def torch(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed & 0x7FFF_FFFF_FFFF_FFFF)


class _OfThread(threading.local):
    """What a thread that makes batches draws from. `is_own`: nothing global is seeded there."""

    is_own = False
    generators: RandomGenerators | None = None


_of_thread = _OfThread()


def random_generators() -> RandomGenerators:
    """The random generators of the batch that is made just now, for a data set or `collate_fn`.

    They give the same numbers for a batch wherever it is made, a resumed run among them: in a
    worker process, a thread (``start_method="thread"``, where the global generators of `random`,
    `numpy.random` and torch are shared with everything else and can't be seeded), an endpoint, or
    the training process.

    Raises
    ------
    RuntimeError
        No batch is made by this thread: in a thread of `threads_per_worker`, or a coroutine, the
        order of draws would follow from the clock. Seed a generator by the sample's index there.
    """
    generators = _of_thread.generators
    if generators is None:
        raise RuntimeError(
            "random_generators() is for the thread that makes a batch: not outside of a worker, "
            "nor in a thread of threads_per_worker or a coroutine, where the order of draws "
            "would follow from the clock. Seed a generator by the sample's index there"
        )
    return generators


def seed_own_generators(seed: int) -> None:
    """Have this thread seed no global generators from now on, `seed_generators` or not."""
    _of_thread.is_own = True
    _of_thread.generators = RandomGenerators(seed)


def seed_generators(seed: int) -> None:
    """Seed what a batch may draw from: `random_generators` and, of a process of its own, `random`,
    `numpy.random` and torch's CPU generator.

    Called in a worker before each batch, so it must be cheap; accelerators are left alone, because
    workers never touch them.

    Parameters
    ----------
    seed:
        A number in [0, 2**64). numpy's legacy generator takes 32 bits; it gets the low half
        mixed with the high half. Torch's gets 63 bits, so that `torch.initial_seed()` fits a
        tensor of int64, as in torch's workers.
    """
    _of_thread.generators = RandomGenerators(seed)
    if _of_thread.is_own:
        return
    random.seed(seed)
    np.random.seed((seed ^ (seed >> 32)) & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)


@contextmanager
def generators_untouched() -> Iterator[None]:
    """Whatever is drawn inside, and whatever is seeded: afterwards they are as they were."""
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    generators = _of_thread.generators
    try:
        yield
    finally:
        _of_thread.generators = generators
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torch_state)


@contextmanager
def generators_drawn_from() -> Iterator[list[str]]:
    """Afterwards the list has the names of the global generators that were drawn from inside."""
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    drawn: list[str] = []
    yield drawn
    if random.getstate() != python:
        drawn.append("random")
    if not _alike(np.random.get_state(), numpy):
        drawn.append("numpy.random")
    if not torch.equal(torch.get_rng_state(), torch_state):
        drawn.append("torch")


def _alike(one: object, other: object) -> bool:
    assert isinstance(one, tuple)
    assert isinstance(other, tuple)
    return bool(one[2] == other[2] and np.array_equal(one[1], other[1]))
