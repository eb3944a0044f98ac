"""grain's ``MapDataset`` with prefetching worker processes, on numpy samples, which it is made for.

Set up as its documentation advises: shuffle by index, no reading threads for data in memory, batch
in the workers (where grain stacks straight into shared memory).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grain

from benchmarks.workloads import Workload


@contextmanager
def batches(workload: Workload, nb_worker: int) -> Iterator[Iterator[Any]]:
    """Endless batches, in order, of numpy arrays."""
    read_options = grain.ReadOptions(num_threads=0) if workload.in_memory else grain.ReadOptions()
    samples = grain.MapDataset.source(workload.dataset(as_torch=False))
    if workload.shuffle:
        samples = samples.shuffle(seed=0)
    iterator = iter(
        samples.repeat()
        .to_iter_dataset(read_options)
        .batch(workload.batch_size)
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=nb_worker))
    )
    try:
        yield iterator
    finally:
        iterator.close()
