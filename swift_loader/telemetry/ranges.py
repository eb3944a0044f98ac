"""Ranges that profilers show: where the loop waits for a batch, and where batches are copied.

They cost nothing unless a profiler is at work: torch's (`torch.profiler`, `emit_nvtx`), which gets
them by `record_function`, or NVIDIA's Nsight, which sets a variable for the programs it starts and
gets them by NVTX.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch.autograd import profiler

__all__ = ["COPY", "WAIT", "profiled", "ranged"]

WAIT = "swift_loader.wait"
COPY = "swift_loader.to_device"
_NSIGHT = ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")


def profiled() -> bool:
    """Whether anybody looks at ranges now."""
    return getattr(profiler, "_is_profiler_enabled", False) or _nsight()


@contextmanager
def ranged(name: str) -> Iterator[None]:
    """The time within is a range of this name."""
    nvtx = _nsight()
    if nvtx:
        torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
    try:
        with profiler.record_function(name):
            yield
    finally:
        if nvtx:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


@cache
def _nsight() -> bool:
    return any(name in os.environ for name in _NSIGHT) and torch.cuda.is_available()
