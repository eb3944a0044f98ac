"""The limit: what one process does that makes samples and stacks them into one reused buffer.

No transport, no other process, no fresh memory: nothing that makes the same samples in one process
can be faster. Work that a core does by itself (``per_core``) can be done on every core at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import cycle
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import default_collate

from benchmarks.consumer import leaves
from benchmarks.workloads import Workload


def _stack_into(buffer: Any, samples: list[Any]) -> None:
    """Stack `samples`, which have the structure of `buffer`, into it."""
    if isinstance(buffer, torch.Tensor):
        if isinstance(samples[0], torch.Tensor):
            torch.stack(samples, out=buffer)
        else:
            buffer.copy_(torch.tensor(samples))
    elif isinstance(buffer, dict):
        for key, part in buffer.items():
            _stack_into(part, [sample[key] for sample in samples])
    else:
        for part, column in zip(buffer, zip(*samples, strict=True), strict=True):
            _stack_into(part, list(column))


def indices_of(workload: Workload, nb_samples: int) -> Iterator[list[int]]:
    """The samples of each batch of an epoch."""
    order = torch.randperm(nb_samples) if workload.shuffle else torch.arange(nb_samples)
    return (indices.tolist() for indices in torch.split(order, workload.batch_size))


def nb_cores(nb_worker: int) -> int:
    """Cores that `nb_worker` processes can keep busy here."""
    return min(nb_worker, len(os.sched_getaffinity(0)))


def batches_per_s(workload: Workload, nb_worker: int) -> dict[str, float]:
    """Measure the limit of `workload`, in batches a second."""
    torch.set_num_threads(1)
    dataset = workload.dataset()
    batches = cycle(indices_of(workload, len(dataset)))
    buffer = default_collate([dataset[index] for index in next(batches)])
    for leaf in leaves(buffer):
        leaf.fill_(1)
    nb_batch = 0
    end_warm_s = perf_counter() + workload.warm_s
    while perf_counter() < end_warm_s:
        _stack_into(buffer, [dataset[index] for index in next(batches)])
    start_s = perf_counter()
    while (elapsed_s := perf_counter() - start_s) < workload.window_s:
        _stack_into(buffer, [dataset[index] for index in next(batches)])
        nb_batch += 1
    cores = nb_cores(nb_worker) if workload.per_core else 1
    return {"batches_per_s": cores * nb_batch / elapsed_s, "nb_batch": nb_batch}
