"""Measures one way of getting batches of a data set: alone, with our workers, with torch's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from torch.utils.data import DataLoader

from swift_loader.batch.collate import collate
from swift_loader.errors import ConfigError
from swift_loader.loader.loader import SwiftLoader

__all__ = [
    *("Subject", "Trial", "busy_cpus", "dataset_alone", "with_torch", "with_workers"),
    "without_workers",
]

_QUEUE = 10  # batches that the loader has made ahead, by default
_SCHEDULED = Path("/proc/thread-self/schedstat")
_WARM_UP_SHARE = 0.5  # of the time to measure: longest warm-up


@dataclass(frozen=True)
class Subject:
    """What is measured, and for how long each time."""

    dataset_class: Callable[..., Any]
    dataset_kwargs: Mapping[str, Any]
    batch_size: int
    shuffle: bool
    seconds: float


@dataclass(frozen=True)
class Trial:
    """One way, measured: `batches` in `elapsed_s`, after a warm-up."""

    name: str
    batches: int
    samples: int
    elapsed_s: float
    first_s: float  # until the first batch was there, with all that had to be built and started
    workers: int = 0
    threads: int = 1
    built_s: float | None = None  # the data set's constructor
    cpu_share: float | None = None  # of the time this process computed
    starved_share: float = 0.0  # of the time it could have computed, and others had the CPUs
    batch_nbytes: int | None = None
    stages: Mapping[str, float] = field(default_factory=dict)  # share of the workers' time
    bottleneck: str | None = None
    slow_fetch_s: float | None = None  # fetching a batch takes longer once in a hundred

    @property
    def batches_per_s(self) -> float:
        return self.batches / self.elapsed_s

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.elapsed_s


def dataset_alone(subject: Subject) -> Trial:
    """Only ``dataset[i]``, in this process."""
    return _in_this_process("dataset alone", subject, lambda samples, indices: None)


def without_workers(subject: Subject) -> Trial:
    """Fetched and collated in this process."""
    return _in_this_process("no workers", subject, lambda s, indices: collate(s, None, indices))


def with_workers(
    subject: Subject, workers: int, threads: int = 1, queue: int | None = None
) -> Trial:
    """`SwiftLoader`, its options at their defaults but for workers, threads and the queue."""
    name = f"swift_loader, {_workers(workers)}"
    if threads > 1:
        name += f" x {threads} threads"
    if queue is not None:
        name += f", queue {queue}"
    began_s = time.perf_counter()
    with SwiftLoader(
        subject.dataset_class,
        subject.dataset_kwargs,
        subject.batch_size,
        worker_per_consumer=workers,
        shuffle=subject.shuffle,
        nearby_shuffle=0,
        threads_per_worker=threads,
        data_queue_size=queue,
        benchmark=False,
        validate=False,
    ) as loader:
        loader.start(0)
        assert loader.nb_samples is not None  # no stream: `dataset_alone` refuses one
        sizes = _sizes(subject, loader.nb_samples, loader)
        trial = _measure(name, subject, sizes, queue or _QUEUE, began_s)
        stats = loader.stats()
    return replace(
        trial,
        workers=workers,
        threads=threads,
        batch_nbytes=stats.nbytes // stats.batches,
        stages={name: stats.stages[name].share for name in ("fetch", "collate", "encode")},
        bottleneck=stats.bottleneck,
        slow_fetch_s=stats.stages["fetch"].p99_s,
    )


def with_torch(subject: Subject, workers: int) -> Trial:
    """torch's `DataLoader`, its arguments at their defaults but for the workers, which it keeps."""
    began_s = time.perf_counter()
    dataset = subject.dataset_class(**subject.dataset_kwargs)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        subject.batch_size,
        shuffle=subject.shuffle,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    sizes = _sizes(subject, len(dataset), loader)
    name = f"torch DataLoader, {_workers(workers)}"
    return replace(_measure(name, subject, sizes, 2 * workers, began_s), workers=workers)


def _in_this_process(
    name: str, subject: Subject, finish: Callable[[list[Any], list[int]], Any]
) -> Trial:
    began_s = time.perf_counter()
    dataset = subject.dataset_class(**subject.dataset_kwargs)
    built_s = time.perf_counter() - began_s
    if not hasattr(dataset, "__len__"):
        raise ConfigError("the data set is a stream, and bench takes those with a length")
    if len(dataset) == 0:
        raise ConfigError("the data set has no samples")
    getitems = getattr(dataset, "__getitems__", None)

    def batches() -> Iterator[None]:
        for epoch in count():
            order = np.arange(len(dataset))
            if subject.shuffle:
                order = np.random.default_rng(epoch).permutation(order)
            for start in range(0, len(order), subject.batch_size):
                indices = order[start : start + subject.batch_size].tolist()
                samples = getitems(indices) if getitems else [dataset[i] for i in indices]
                finish(samples, indices)
                yield

    cpu_s, wall_s, starved_s = time.process_time(), time.perf_counter(), _starved_s()
    trial = _measure(name, subject, _sizes(subject, len(dataset), batches()), 0, began_s)
    took_s = time.perf_counter() - wall_s
    return replace(
        trial,
        built_s=built_s,
        cpu_share=(time.process_time() - cpu_s) / took_s,
        starved_share=(_starved_s() - starved_s) / took_s,
    )


def _starved_s() -> float:
    """Seconds that this thread was ready and had no CPU; 0 where the system doesn't tell."""
    try:
        return int(_SCHEDULED.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def busy_cpus() -> float:
    """How many CPUs other processes use, on average over half a second in which this one sleeps."""
    share = psutil.cpu_percent(interval=0.5) / 100
    return share * (psutil.cpu_count() or 1)


def _sizes(subject: Subject, nb_samples: int, batches: Iterable[Any]) -> Iterator[int]:
    """Samples in each batch that comes, without the batches: epoch after epoch."""
    whole, rest = divmod(nb_samples, subject.batch_size)
    sizes = [subject.batch_size] * whole + ([rest] if rest else [])
    while True:
        for number, _ in enumerate(batches):
            yield sizes[number % len(sizes)]


def _measure(
    name: str, subject: Subject, sizes: Iterator[int], made_ahead: int, began_s: float
) -> Trial:
    """Count what comes in `seconds`, once what was made ahead during the start is used up."""
    next(sizes)
    first_s = time.perf_counter() - began_s
    warm_up_s = time.perf_counter()
    for _ in range(made_ahead):
        if time.perf_counter() - warm_up_s > _WARM_UP_SHARE * subject.seconds:
            break
        next(sizes)
    batches = samples = 0
    measured_s = time.perf_counter()
    while (elapsed_s := time.perf_counter() - measured_s) < subject.seconds or not batches:
        samples += next(sizes)
        batches += 1
    return Trial(name, batches, samples, elapsed_s, first_s)


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"
