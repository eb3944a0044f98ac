"""A mixture of documents, consumed by real loaders that are stopped and go on, and a plain loop."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from swift_loader import Mixture, Packed, Source, SwiftLoader
from swift_loader.plan import Plan
from tests.unit.plan.mixtures import Run, plan_of

LENGTHS = {"web": 60, "code": 23, "books": 9}
OPTIONS: dict[str, Any] = {"shuffle": True, "nearby_shuffle": 0, "seed": 7}


class Documents:
    """Document `i` is eight tokens that say which it is."""

    def __init__(self, n: int, source: int) -> None:
        self.n, self.source = n, source

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        if not 0 <= i < self.n:
            raise IndexError(i)
        return np.arange(8) + 1000 * i + 1_000_000 * self.source


class Uneven(Documents):
    """Documents of several lengths that make so many sequences of eight tokens."""

    def __init__(self, n: int, source: int) -> None:
        ends = [0]
        while ends[-1] < 8 * n:
            ends.append(min(8 * n, ends[-1] + (3, 13, 8, 1, 21)[len(ends) % 5]))
        self.lengths = np.diff(ends)
        super().__init__(len(self.lengths), source)

    def __getitem__(self, i: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.arange(self.lengths[i]) + 1000 * i + 1_000_000 * self.source


def packed_of(name: str) -> Packed:
    documents = Uneven(LENGTHS[name], list(LENGTHS).index(name))
    return Packed(documents, 8, documents.lengths, fields=["tokens"])


def mixture_of_packed(weights: Any) -> Mixture:
    return Mixture({name: Source(packed_of(name)) for name in LENGTHS}, weights=weights)


def packed_tokens_of(seen: Sequence[tuple[str, int]]) -> list[list[int]]:
    made = {name: packed_of(name) for name in LENGTHS}
    return [made[name][i]["tokens"].tolist() for name, i in seen]


def mixture_of(weights: Any, **options: Any) -> Mixture:
    sources = {
        name: Source(Documents, {"n": n, "source": number})
        for number, (name, n) in enumerate(LENGTHS.items())
    }
    return Mixture(sources, weights=weights, **options)


def tokens_of(seen: Sequence[tuple[str, int]]) -> list[list[int]]:
    names = list(LENGTHS)
    return [Documents(LENGTHS[name], names.index(name))[i].tolist() for name, i in seen]


class Loaders:
    """All consumers of a run, each a real loader in this process; compared with a `Run`."""

    def __init__(self, make: Callable[..., SwiftLoader], packed: bool = False) -> None:
        self._make = make
        self._packed = packed
        self._loaders: list[SwiftLoader] = []
        self._epochs: list[Any] = []
        self.run: Run | None = None

    def go_on(self, weights: Any, nb_consumer: int, batch_size: int, workers: int) -> None:
        """Stop, and go on as other consumers."""
        plan: Plan = plan_of(
            LENGTHS, weights=weights, nb_consumer=nb_consumer, batch_size=batch_size
        )
        states = [json.loads(json.dumps(loader.state_dict())) for loader in self._loaders]
        self.close()
        if self.run is None:
            self.run = Run(plan)
        else:
            assert states == self.run.states()
            self.run.resume(plan)
        options = {**OPTIONS, "batch_size": batch_size, "nb_consumer": nb_consumer}
        for consumer in range(nb_consumer):
            mixture = mixture_of_packed(weights) if self._packed else mixture_of(weights)
            loader = self._make(mixture, worker_per_consumer=workers, validate=False, **options)
            if states:
                loader.load_state_dict(states[0])
            loader.start(consumer)
            self._loaders.append(loader)
        self._epochs = [iter(loader) for loader in self._loaders]

    def step(self) -> None:
        """A step of all, or the end of the epoch for all."""
        assert self.run is not None
        want = [self.run.take(consumer) for consumer in range(len(self._loaders))]
        got = [next(epoch, None) for epoch in self._epochs]
        for batch, seen in zip(got, want, strict=True):
            assert (batch is None) == (seen is None)
            if seen is not None and self._packed:
                assert batch["tokens"].tolist() == packed_tokens_of(seen)
            elif seen is not None:
                assert batch.tolist() == tokens_of(seen)
        if None in want:
            self.run.step()
            self._epochs = [iter(loader) for loader in self._loaders]

    def close(self) -> None:
        for loader in self._loaders:
            loader.close()
        self._loaders.clear()


def a_few_resumes(
    make: Callable[..., SwiftLoader],
    consumers: Sequence[int],
    seed: int,
    nb_stages: int = 2,
    packed: bool = False,
) -> None:
    """A run that goes on, at random places, with other numbers and weights."""
    draw = random.Random(seed)
    loaders = Loaders(make, packed)
    weights = {"web": 0.6, "code": 0.3, "books": 0.1}
    try:
        for stage in range(nb_stages):
            if stage and draw.random() < 0.5:
                weights = {name: draw.choice([0.05, 0.3, 1.0]) for name in LENGTHS}
            loaders.go_on(
                dict(weights), draw.choice(consumers), draw.randint(2, 5), draw.randint(1, 2)
            )
            for _ in range(draw.randint(0, 30)):
                loaders.step()
    finally:
        loaders.close()
