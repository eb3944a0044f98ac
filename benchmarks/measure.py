"""One contestant on one workload, in this process: batches a second, and what they cost it."""

from __future__ import annotations

import resource
from time import perf_counter, process_time, thread_time
from typing import Any

from benchmarks import limit
from benchmarks.consumer import Device, nb_bytes
from benchmarks.contestants import CONTESTANTS, LIMIT
from benchmarks.workloads import Workload


def run(contestant: str, workload: Workload, nb_worker: int) -> dict[str, float]:
    """Warm up, then take batches for `workload.window_s` seconds, copying each.

    Returns batches a second, and the CPU seconds that this process (all its threads) used for a
    batch: altogether, and in the copying alone.
    """
    if contestant == LIMIT:
        return limit.batches_per_s(workload, nb_worker)
    _use_one_thread()
    with CONTESTANTS[contestant].open()(workload, nb_worker) as batches:
        first = next(batches)
        device = Device(first)
        batch_bytes = nb_bytes(first)
        del first
        _take(batches, device, workload.warm_s, workload.warm_batches)
        start_s, start_cpu_s = perf_counter(), process_time()
        nb_batch, copy_cpu_s = _take(batches, device, workload.window_s)
        elapsed_s, cpu_s = perf_counter() - start_s, process_time() - start_cpu_s
    return {
        "batches_per_s": nb_batch / elapsed_s,
        "cpu_s_per_batch": cpu_s / nb_batch,
        "copy_cpu_s_per_batch": copy_cpu_s / nb_batch,
        "batch_bytes": float(batch_bytes),
        "nb_batch": float(nb_batch),
        "peak_rss_bytes": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024),
    }


def batches_per_s(
    batches: Any, window_s: float, warm_s: float = 0.5, warm_batches: int = 1
) -> dict[str, float]:
    """Take batches for `window_s` seconds after a warm-up, copying each: the rate alone."""
    _use_one_thread()
    device = Device(next(batches))
    _take(batches, device, warm_s, warm_batches)
    start_s = perf_counter()
    nb_batch, _ = _take(batches, device, window_s)
    return {"batches_per_s": nb_batch / (perf_counter() - start_s)}


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _take(batches: Any, device: Device, window_s: float, at_least: int = 1) -> tuple[int, float]:
    """Take batches for `window_s` seconds; returns how many, and the CPU seconds of copying."""
    nb_batch = 0
    copy_cpu_s = 0.0
    end_s = perf_counter() + window_s
    for batch in batches:
        before_s = thread_time()
        device.take(batch)
        copy_cpu_s += thread_time() - before_s
        del batch
        nb_batch += 1
        if perf_counter() >= end_s and nb_batch >= at_least:
            break
    return nb_batch, copy_cpu_s
