"""torchdata's ``StatefulDataLoader``: persistent workers, otherwise its defaults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.workloads import Workload


@contextmanager
def batches(workload: Workload, nb_worker: int) -> Iterator[Iterator[Any]]:
    """Endless batches; `in_order` as the workload asks."""
    loader = StatefulDataLoader(
        workload.dataset(),
        batch_size=workload.batch_size,
        shuffle=workload.shuffle,
        num_workers=nb_worker,
        persistent_workers=True,
        in_order=workload.in_order,
    )
    yield chain.from_iterable(repeat(loader))
