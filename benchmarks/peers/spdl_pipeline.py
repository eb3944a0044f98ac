"""SPDL's three execution models: threads, threads in a subprocess, and worker processes.

Set up as its page "Execution Models: MT, MTP, and MP" advises: a continuous source, one task a
batch with as many at once as there are workers, and a shared-memory arena where finished batches
cross a process boundary in one go. Batches come as they are completed, which is its default and
asks less of it than order would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, repeat
from typing import Any

import torch
from spdl.pipeline import (
    PipelineBuilder,
    SharedMemorySegmentPool,
    run_pipeline_in_subprocess,
)
from spdl.pipeline.defs import MAIN_PROCESS, ProcessPoolExecutorConfig
from torch.utils.data import default_collate

from benchmarks.consumer import nb_bytes
from benchmarks.workloads import Workload

_BUFFER_SIZE = 3  # its default: finished batches that wait for the training loop
_dataset: Any = None


class _BatchesOfIndices:
    """One epoch of sample indices, a batch at a time."""

    def __init__(self, nb_samples: int, batch_size: int, shuffle: bool) -> None:
        self._nb_samples = nb_samples
        self._batch_size = batch_size
        self._shuffle = shuffle

    def __iter__(self) -> Iterator[list[int]]:
        n = self._nb_samples
        order = torch.randperm(n) if self._shuffle else torch.arange(n)
        for indices in torch.split(order, self._batch_size):
            yield indices.tolist()


def _make_batch(dataset: Any, indices: list[int]) -> Any:
    return default_collate([dataset[index] for index in indices])


def _build_dataset(workload: Workload) -> None:
    global _dataset
    torch.set_num_threads(1)
    _dataset = workload.dataset()


def _make_batch_in_worker(indices: list[int]) -> Any:
    return _make_batch(_dataset, indices)


def _source(workload: Workload, dataset: Any) -> Any:
    return _BatchesOfIndices(len(dataset), workload.batch_size, workload.shuffle)


def _builder(workload: Workload, dataset: Any, nb_worker: int) -> Any:
    return (
        PipelineBuilder()
        .add_source(_source(workload, dataset), continuous=True)
        .pipe(partial(_make_batch, dataset), concurrency=nb_worker)
        .add_sink(_BUFFER_SIZE)
    )


@contextmanager
def batches_of_threads(workload: Workload, nb_worker: int) -> Iterator[Iterator[Any]]:
    """Endless batches made by `nb_worker` threads of the training process (MT)."""
    pipeline = _builder(workload, workload.dataset(), nb_worker).build(num_threads=nb_worker)
    with pipeline.auto_stop():
        yield chain.from_iterable(repeat(pipeline))


@contextmanager
def batches_of_subprocess(workload: Workload, nb_worker: int) -> Iterator[Iterator[Any]]:
    """Endless batches made by `nb_worker` threads of one subprocess (MTP), through an arena."""
    dataset = workload.dataset()
    batch_bytes = nb_bytes(_make_batch(dataset, list(range(workload.batch_size))))
    arena = SharedMemorySegmentPool(segment_size=batch_bytes + (1 << 16), count=_BUFFER_SIZE + 3)
    config = _builder(workload, dataset, nb_worker).get_config()
    source = run_pipeline_in_subprocess(
        config, num_threads=nb_worker, buffer_size=_BUFFER_SIZE, arena=arena
    )
    yield chain.from_iterable(repeat(source))


@contextmanager
def batches_of_processes(workload: Workload, nb_worker: int) -> Iterator[Iterator[Any]]:
    """Endless batches made by `nb_worker` worker processes (MP).

    Not stopped, which takes it six seconds: the end of the run ends its processes.
    """
    pipeline: Any = (
        PipelineBuilder()
        .add_source(_source(workload, workload.dataset()), continuous=True)
        .to(ProcessPoolExecutorConfig(nb_worker, _build_dataset, (workload,)))
        .pipe(_make_batch_in_worker)
        .to(MAIN_PROCESS)
        .add_sink(_BUFFER_SIZE)
        .build(num_threads=nb_worker)
    )
    pipeline.start()
    yield chain.from_iterable(repeat(pipeline))
