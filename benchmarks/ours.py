"""swift_loader itself, with its defaults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any

import torch

from benchmarks.workloads import Workload
from swift_loader import SwiftLoader


def loader(workload: Workload, nb_worker: int, **options: Any) -> SwiftLoader:
    """The SwiftLoader for `workload`, not started; `options` go to it as they are."""
    return SwiftLoader(
        dataset_class=workload.dataset_class,
        dataset_kwargs=dict(workload.dataset_kwargs),
        batch_size=workload.batch_size,
        nb_consumer=1,
        worker_per_consumer=nb_worker,
        shuffle=workload.shuffle,
        in_order=workload.in_order,
        **options,
    )


@contextmanager
def batches(workload: Workload, nb_worker: int, **options: Any) -> Iterator[Iterator[Any]]:
    """Endless batches, epoch after epoch."""
    with loader(workload, nb_worker, **options) as started:
        started.start(consumer_index=0, device=torch.device("cpu"))
        yield chain.from_iterable(repeat(started))
