"""Packed sequences from real workers, token for token those of a plain loop over the plan."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from swift_loader import Packed, SwiftLoader
from swift_loader.plan import Plan
from tests.process.remote.endpoints import RunningEndpoint

pytestmark = pytest.mark.timeout(110)

LENGTH = 64
SEED = 11


class Documents:
    """Document `i` has tokens that tell which they are."""

    def __init__(self, n: int = 150) -> None:
        self.lengths = np.random.default_rng(n).integers(0, 150, n)
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        return np.arange(self.lengths[index]) + 1000 * index


def packed(how: Any) -> Packed:
    return Packed(
        Documents(), LENGTH, how=how, separator=-7, shuffle_documents=how == "split", seed=SEED
    )


@pytest.fixture(scope="module")
def endpoint() -> Iterator[RunningEndpoint]:
    running = RunningEndpoint()
    yield running
    running.end()


def workers_at(where: str, count: int, request: pytest.FixtureRequest) -> dict[str, Any]:
    if where == "local":
        return {"worker_per_consumer": count}
    address = request.getfixturevalue("endpoint").address
    return {"worker_per_consumer": 0, "remote_workers": [address], "remote_key": False}


def plain_rows(data: Packed, indices: list[int]) -> list[dict[str, list[int]]]:
    return [{name: field.tolist() for name, field in data[index].items()} for index in indices]


def rows_of(batch: Any) -> list[dict[str, list[int]]]:
    """The sequences of a batch, each with its own boundaries."""
    bounds = batch["cu_seqlens"].numpy()
    rows = []
    for row in range(len(batch["tokens"])):
        first, last = row * LENGTH, (row + 1) * LENGTH
        own = bounds[(bounds >= first) & (bounds <= last)] - first
        fields = {name: batch[name][row].tolist() for name in batch if name != "cu_seqlens"}
        rows.append({**fields, "cu_seqlens": own.tolist()})
    return rows


def run_round(how: Any, where: str, consumers: int, seed: int, request: Any) -> None:
    """Stop at random points, go on with other numbers, and compare with the plan each time."""
    draws = random.Random(seed)
    data = packed(how)
    data.set_epoch(0)
    seen: list[int] = []
    states: Any = None
    for leg in range(3):
        batch_size = draws.randint(1, 6)
        new = []
        stop = draws.randint(0, 5) if leg < 2 else 10**6
        for consumer in range(consumers):
            loader = SwiftLoader(
                packed(how),
                batch_size=batch_size,
                nb_consumer=consumers,
                shuffle=True,
                seed=SEED,
                validate=False,
                **workers_at(where, draws.randint(1, 3), request),
            )
            with loader:
                if states is not None:
                    loader.load_state_dict(states)
                loader.start(consumer)
                iterator = iter(loader)
                order = loader._the_order()
                wanted = iter(order.batches(iterator.part))
                for batch in islice(iterator, stop):
                    number, details = next(wanted)
                    indices = order.samples(number, details)
                    assert rows_of(batch) == plain_rows(data, indices)
                    seen += indices
                new.append(loader.state_dict())
                del iterator
        states = new
        consumers = draws.choice([1, 2, 3])
    assert sorted(seen) == list(range(len(data)))


@pytest.mark.usefixtures("shared_zygote")
@pytest.mark.parametrize(
    ("how", "where", "consumers"),
    [("split", "local", 1), ("best-fit", "endpoint", 3)],
)
def test_sequences_are_those_of_the_plan_over_resumes(
    how: str, where: str, consumers: int, request: pytest.FixtureRequest
) -> None:
    run_round(how, where, consumers, 1, request)


@pytest.mark.soak
@pytest.mark.usefixtures("shared_zygote")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("how", ["split", "best-fit"])
@pytest.mark.parametrize("where", ["local", "endpoint"])
@pytest.mark.parametrize("consumers", [1, 3])
def test_fifty_rounds(
    how: str, where: str, consumers: int, seed: int, request: pytest.FixtureRequest
) -> None:
    run_round(how, where, consumers, seed, request)


def test_documents_change_places_in_each_epoch() -> None:
    data = packed("split")
    plan = Plan(len(data), 4, 1, True, 8192, SEED)
    with SwiftLoader(packed("split"), batch_size=4, shuffle=True, seed=SEED) as loader:
        for epoch in range(2):
            data.set_epoch(epoch)
            for k, batch in enumerate(loader):
                assert rows_of(batch) == plain_rows(data, plan.batch(epoch, 0, k).tolist())


class Masked(Documents):
    """Documents that draw."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + torch.randint(10, ()).item()


class Sequences(Packed):
    """No gathering of batches: a subclass may give other samples."""


@pytest.mark.parametrize("workers", [0, 1])
def test_documents_draw_the_same_in_gathered_batches(workers: int) -> None:
    seen = []
    for kind in (Packed, Sequences):
        data = kind(Masked(), LENGTH, Documents().lengths, how="best-fit")
        options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": SEED}
        with SwiftLoader(data, worker_per_consumer=workers, **options) as loader:
            seen.append([rows_of(batch) for batch in loader])
    assert seen[0] == seen[1]


def test_a_document_of_another_length_is_named_by_its_sequence() -> None:
    lengths = Documents().lengths.copy()
    lengths[3] += 1
    data = Packed(Documents(), LENGTH, lengths, how="best-fit")
    with SwiftLoader(data, batch_size=4, worker_per_consumer=1, validate=False) as loader:
        with pytest.raises(ValueError, match="document 3 has"):
            list(loader)
