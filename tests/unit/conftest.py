"""Benchmark files for the tests, written by the product itself in real time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from swift_loader.telemetry.metrics import BatchTimes, Meter
from swift_loader.telemetry.monitor import open_benchmark
from swift_loader.telemetry.stats import CacheStats

WriteRun = Callable[..., Path]


def _write_run(
    path: Path,
    *,
    consumer: int = 0,
    batches: int = 30,
    wait_s: float = 0.0,
    loop_s: float = 0.004,
    fetch_s: float = 0.008,
    killed: bool = False,
    cache: CacheStats | None = None,
) -> Path:
    """Two epochs, a restart, a skipped sample, a warning; this process plays both workers."""
    meter = Meter(consumer)
    writer = open_benchmark(
        meter,
        path=path,
        logger=None,
        plan={"nb_samples": 32 * batches, "batch_size": 32},
        options={"collate_fn": None, "note": "<script>alert(1)</script>"},
        interval_s=0.02,
        stats=lambda: replace(meter.snapshot(), cache=cache),
    )
    meter.worker_started(0, os.getpid())
    meter.worker_started(1, os.getpid())
    for epoch in range(2):
        meter.epoch_begins(epoch, time.perf_counter())
        for k in range(batches):
            time.sleep(loop_s)
            began_s = time.perf_counter()
            if wait_s:
                time.sleep(wait_s)  # and longer, where others have the CPUs
            waited_s = time.perf_counter() - began_s if wait_s else 0.0
            meter.add(
                BatchTimes(
                    worker=k % 2,
                    epoch=epoch,
                    k=k,
                    nb_samples=32,
                    nbytes=1_000_000,
                    fetch_s=fetch_s,
                    collate_s=0.0005,
                    encode_s=0.0002,
                    decode_s=0.0001,
                    to_device_s=0.0001,
                    wait_s=waited_s,
                    queue_depth=0 if wait_s else 7,
                    at_s=time.perf_counter(),
                )
            )
        meter.epoch_ends(time.perf_counter())
        if epoch == 0:
            meter.worker_restarted(1, os.getpid(), "killed by \x1b[31msignal 9")
            meter.skipped(17, "OSError: truncated")
            meter.event("warning", text="the queue is short")
    if killed:
        meter.listen(None)  # as if the process were gone: nothing more is written
        writer._done()
    else:
        writer.close()
    return path


@pytest.fixture
def write_run() -> WriteRun:
    return _write_run
