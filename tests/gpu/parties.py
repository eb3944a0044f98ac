"""What processes of the device's sharing tests run. CUDA can't be forked: they are spawned."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch

from swift_loader import SwiftLoader
from swift_loader.sharing import TensorConsumer, TensorProducer
from tests.datasets import Numbers
from tests.process.sharing.parties import Party, ask, await_consumers, number_of, say

DEVICE = "cuda:0"


class SpawnedParty(Party):
    context = multiprocessing.get_context("spawn")


def busy() -> None:
    torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]


def read(port: str, epochs: int = 1, *, scribble: bool = False, **options: Any) -> list[int]:
    """The numbers of all batches, read behind a device that is busy."""
    numbers = []
    with TensorConsumer(port, **options) as consumer:
        for _ in range(epochs):
            for tensor, name in consumer:
                assert tensor.device == torch.device(DEVICE)
                busy()
                low, high = tensor.min(), tensor.max()
                if scribble:
                    tensor.fill_(-1)
                del tensor
                numbers.append((low, high, name))
    listed = [(int(low), int(high), name) for low, high, name in numbers]
    assert all(low == high and name == f"batch {low}" for low, high, name in listed)
    return [low for low, _, _ in listed]


def keep(port: str, nb_kept: int, **options: Any) -> list[int]:
    """Holds `nb_kept` batches until the epoch has ended."""
    kept = []
    with TensorConsumer(port, **options) as consumer:
        for k, batch in enumerate(consumer):
            if k < nb_kept:
                kept.append(batch)
            del batch
        return [number_of(batch) for batch in kept]


def read_some_and_wait(port: str, **options: Any) -> None:
    """Holds a batch, says so, and is killed."""
    consumer = TensorConsumer(port, **options)
    batch = next(consumer)
    say(number_of(batch))
    ask()


def samples(port: str, batch_size: int) -> list[list[int]]:
    """The indices of a `SwiftLoader` of `Numbers`, in batches of one's own."""
    seen = []
    with TensorConsumer(port, batch_size=batch_size) as consumer:
        for rows, indices in consumer:
            busy()
            assert bool((rows == indices[:, None]).all())
            seen.append(indices.tolist())
    return seen


def used_bytes(port: str, at: tuple[int, ...]) -> list[int]:
    """Memory of the device that is in use after so many batches, of all processes together."""
    used = []
    with TensorConsumer(port) as consumer:
        for k, batch in enumerate(consumer):
            del batch
            if k in at:
                torch.cuda.synchronize()
                free, total = torch.cuda.mem_get_info()
                used.append(total - free)
    return used


def produce_samples(port: str, nb_samples: int, wait_for: int) -> int:
    """Serve a `SwiftLoader`, whose workers' batches go to the device from pinned slots."""
    loader = SwiftLoader(
        Numbers, {"n": nb_samples, "width": 1 << 12}, batch_size=6, worker_per_consumer=2
    )
    with loader, TensorProducer(loader, port, device=DEVICE) as producer:
        await_consumers(producer, wait_for)
        for _ in producer:
            pass
        producer.join()
        return loader.stats().batches


Spawn = Callable[..., SpawnedParty]
