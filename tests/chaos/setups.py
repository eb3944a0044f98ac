"""Loaders of every kind, small, and the batches that they give when nobody disturbs them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from swift_loader import SwiftLoader
from tests import datasets

__all__ = ["AXES", "Setup", "batches_of", "every", "undisturbed"]

NB_SAMPLES = 62
BATCH_SIZE = 3
WORKERS = 3
GENEROUS_S = 60.0

AXES = {
    "source": ["map", "stream", "sampled"],
    "way": ["plain", "threads", "decoder", "staged"],
    "place": ["local", "remote", "ray"],
    "tail": ["balanced", "drop"],
    "in_order": [True, False],
}


@dataclass(frozen=True)
class Setup:
    """A value of each axis."""

    source: str = "map"
    way: str = "plain"
    place: str = "local"
    tail: str = "balanced"
    in_order: bool = True

    @property
    def name(self) -> str:
        """For the test's name."""
        order = "in order" if self.in_order else "first ready"
        return f"{self.source}-{self.way}-{self.place}-{self.tail}-{order}"


def every() -> list[Setup]:
    """All that there are: the shards of a stream belong to local workers."""
    return [
        Setup(source, way, place, tail, in_order)
        for source in AXES["source"]
        for way in AXES["way"]
        for place in AXES["place"]
        for tail in AXES["tail"]
        for in_order in AXES["in_order"]
        if not (source == "stream" and (place != "local" or way == "threads"))
    ]


class Drawn(IterableDataset[Any]):
    """A stream of which each worker has a part; its items draw from all three generators."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, self.n, step):
            draws = [random.random(), np.random.rand(), torch.rand(()).item()]
            yield {"index": i, "draws": torch.tensor(draws), "text": "x" * random.randrange(9000)}


def encoded(batch: Any) -> bytes:
    """A `batch_encoder`."""
    texts = "\0".join(batch["text"]).encode()
    numbers = batch["index"].numpy().astype(np.int64).tobytes()
    return (
        len(batch["text"]).to_bytes(4, "little")
        + numbers
        + batch["draws"].numpy().tobytes()
        + texts
    )


def decoded(data: bytes) -> Any:
    """The `batch_decoder` for it."""
    count = int.from_bytes(data[:4], "little")
    draws_at, texts_at = 4 + 8 * count, 4 + 20 * count
    return {
        "index": torch.frombuffer(bytearray(data[4:draws_at]), dtype=torch.int64),
        "draws": torch.frombuffer(bytearray(data[draws_at:texts_at]), dtype=torch.float32).view(
            -1, 3
        ),
        "text": data[texts_at:].decode().split("\0"),
    }


def loader_of(setup: Setup, **options: Any) -> SwiftLoader:
    """The loader, started."""
    given: dict[str, Any] = {
        "batch_size": BATCH_SIZE,
        "worker_per_consumer": WORKERS if setup.place == "local" else 0,
        "data_queue_size": 6,
        "timeout": GENEROUS_S,
        "max_worker_restarts": 10**6,
        "tail": setup.tail,
        "in_order": setup.in_order,
        "validate": False,
        "seed": 3,
    }
    if setup.source == "sampled":
        given["sampler"] = [i * 5 % NB_SAMPLES for i in range(NB_SAMPLES)]
    elif setup.source == "map":
        given["shuffle"] = True
    if setup.way == "threads":
        given["threads_per_worker"] = 2
    if setup.way == "decoder":
        given |= {"batch_encoder": encoded, "batch_decoder": decoded}
    kind = Drawn if setup.source == "stream" else datasets.Drawn
    loader = SwiftLoader(kind, {"n": NB_SAMPLES}, **(given | options))
    loader.start(0, to_device=_same if setup.way == "staged" else None)
    return loader


def _same(batch: Any, device: torch.device) -> Any:
    return batch


def plain(setup: Setup, batch: dict[str, Any]) -> tuple[Any, ...]:
    """A batch, so that it can be compared and sorted."""
    if setup.way == "threads":  # what is drawn depends on their timing
        return (batch["index"].tolist(),)
    return batch["index"].tolist(), batch["draws"].tolist(), batch["text"]


@cache
def undisturbed(setup: Setup) -> list[list[Any]]:
    """The batches of three epochs, sorted where their order is open."""
    with loader_of(replace(setup, place="local")) as loader:
        return [batches_of(setup, loader) for _ in range(3)]


def batches_of(setup: Setup, loader: SwiftLoader, on_batch: Any = None) -> list[Any]:
    """One epoch."""
    found = []
    for batch in loader:
        found.append(plain(setup, batch))
        if on_batch is not None:
            on_batch()
    return found if setup.in_order else sorted(found)
