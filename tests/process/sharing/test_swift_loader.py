"""A `SwiftLoader` that is shared: its slots as they are, and its state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_loader import SwiftLoader
from swift_loader.errors import ClosedError
from swift_loader.sharing import TensorConsumer, TensorProducer
from tests.process.sharing.parties import ask, await_consumers, say


class Squares:
    """Sample `i` is ``(i, 1,000 times i * i)``."""

    def __init__(self, nb_samples: int) -> None:
        self._nb_samples = nb_samples

    def __len__(self) -> int:
        return self._nb_samples

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.full((1_000,), index * index)


def _loader(nb_samples: int = 403) -> SwiftLoader:
    return SwiftLoader(
        Squares,
        {"nb_samples": nb_samples},
        batch_size=4,
        worker_per_consumer=2,
        shuffle=True,
        seed=3,
        validate=False,
    )


def _indices(batch: Any) -> list[int]:
    indices, squares = batch
    assert torch.equal(squares.amin(1), indices * indices)
    assert torch.equal(squares.amax(1), indices * indices)
    return [int(i) for i in indices]


def test_its_slots_are_handed_on_as_they_are(party: Any, port: str) -> None:
    def serve() -> list[str]:
        inherited = _regions()
        with _loader() as loader, TensorProducer(loader, port) as producer:
            await_consumers(producer, 2)
            for _ in range(2):
                for _ in producer:
                    pass
            producer.join()
            return [line for line in _regions() if line not in inherited]

    def read(batch_size: int | None) -> Any:
        inherited = _regions()
        consumer = TensorConsumer(port, batch_size=batch_size)
        lengths = [len(consumer)]
        epochs = [[_indices(batch) for batch in consumer]]
        lengths.append(len(consumer))
        epochs.append([_indices(batch) for batch in consumer])
        return lengths, epochs, [line for line in _regions() if line not in inherited]

    producer = party(serve)
    whole, cut = party(read, None), party(read, 10)
    lengths, epochs, regions = whole.result()
    assert lengths == [101, 101] == [len(epoch) for epoch in epochs]
    cut_lengths, cut_epochs, _ = cut.result()
    assert cut_lengths == [41, 41] == [len(epoch) for epoch in cut_epochs]
    for epoch, cut_epoch in zip(epochs, cut_epochs, strict=True):
        order = [i for batch in epoch for i in batch]
        assert sorted(order) == list(range(403))
        assert [i for batch in cut_epoch for i in batch] == order
    assert epochs[0] != epochs[1]
    assert regions
    assert not [line for line in regions + producer.result() if ":sharing" in line]


def _regions() -> list[str]:
    """The shared memory that this process maps: addresses and names."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "memfd:swift_loader" in line]


def test_a_producer_resumed_from_its_state_goes_on_where_it_was(party: Any, port: str) -> None:
    def serve(state: Any) -> None:
        with _loader(200) as loader:
            if state is not None:
                loader.load_state_dict(state)
            with TensorProducer(loader, port) as producer:
                await_consumers(producer, 2)
                for k in producer:
                    if state is None and k == 30:
                        say(producer.state_dict())
                        ask()  # to be killed
                producer.join()

    def read() -> list[list[int]]:
        return [_indices(batch) for batch in TensorConsumer(port, reconnect=60.0)]

    producer = party(serve, None)
    readers = [party(read), party(read)]
    state = producer.hear()
    producer.kill()
    again = party(serve, state)
    orders = [reader.result() for reader in readers]
    again.result()
    assert orders[0] == orders[1]
    assert len(orders[0]) == 50
    assert sorted(i for batch in orders[0] for i in batch) == list(range(200))


class Countdown(torch.utils.data.IterableDataset[int]):
    """A stream without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(20, 0, -1))


def test_a_stream_is_shared_without_a_length(party: Any, port: str) -> None:
    def serve() -> None:
        with (
            SwiftLoader(Countdown, batch_size=4, validate=False) as loader,
            TensorProducer(loader, port) as producer,
        ):
            for _ in range(2):
                for _ in producer:
                    pass
            with pytest.raises(ClosedError):
                producer.state_dict()
            producer.join()

    def read() -> list[int]:
        consumer = TensorConsumer(port, batch_size=7)
        with pytest.raises(TypeError, match="nb_samples="):
            len(consumer)
        return [int(i) for _ in range(2) for batch in consumer for i in batch]

    producer = party(serve)
    assert party(read).result() == [*range(20, 0, -1)] * 2
    producer.result()
