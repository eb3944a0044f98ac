"""torch's own ``DataLoader``: persistent workers, otherwise its defaults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.workloads import Workload


def loader(workload: Workload, nb_worker: int, **options: Any) -> DataLoader[Any]:
    """The DataLoader for `workload`; `options` go to it as they are."""
    return DataLoader(
        workload.dataset(),
        batch_size=workload.batch_size,
        shuffle=workload.shuffle,
        num_workers=nb_worker,
        persistent_workers=True,
        **options,
    )


@contextmanager
def batches(workload: Workload, nb_worker: int) -> Iterator[Iterator[Any]]:
    """Endless batches, in order: what a plain ``DataLoader`` gives."""
    yield chain.from_iterable(repeat(loader(workload, nb_worker)))


@contextmanager
def batches_first_ready(workload: Workload, nb_worker: int) -> Iterator[Iterator[Any]]:
    """Endless batches as they become ready (``in_order=False``)."""
    yield chain.from_iterable(repeat(loader(workload, nb_worker, in_order=False)))
