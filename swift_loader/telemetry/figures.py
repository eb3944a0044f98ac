"""The figures that sinks are given: one table of names, units and meanings. Pure.

Names and units follow Prometheus' conventions (https://prometheus.io/docs/practices/naming/): base
units, ``_total`` for what only grows, ``_ratio`` for shares of 1. ``docs/metrics.md`` is made of
this table (``scripts/metrics_table.py --write``).

Another part of the loader adds figures in two steps: a `Figure` in `FIGURES`, and a callable that
gives its `Reading`\\ s to `swift_loader.telemetry.metrics.Meter.also`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from swift_loader.telemetry.printable import printable

__all__ = ["FIGURES", "PREFIX", "Figure", "Reading", "flat"]

PREFIX = "swift_loader_"


class Reading(NamedTuple):
    """One value of the figure `name`; `of` tells which worker, stage or source it is about."""

    name: str
    value: float
    of: str = ""


@dataclass(frozen=True)
class Figure:
    """One figure. `label`: what tells its readings apart; "": there is one reading.

    `detail`: there may be hundreds of them (one for each worker), so only sinks with labels get it.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    text: str
    label: str = ""
    detail: bool = False


def _counter(name: str, unit: str, text: str, label: str = "", *, detail: bool = False) -> Figure:
    return Figure(f"{PREFIX}{name}_total", "counter", unit, text, label, detail)


def _gauge(name: str, unit: str, text: str, label: str = "", *, detail: bool = False) -> Figure:
    return Figure(PREFIX + name, "gauge", unit, text, label, detail)


_TABLE = (
    # ---- what training got
    _counter("batches", "batches", "Batches that the training loop got."),
    _counter("samples", "samples", "Samples in them."),
    _counter("batch_bytes", "bytes", "Bytes in them."),
    _gauge("epoch", "", "The epoch that is iterated, or was last."),
    _counter("source_samples", "samples", "Samples of a mixture's source.", "source"),
    _counter(
        "source_tokens",
        "tokens",
        "Tokens in them, where `Source(tokens=)` says, or the source is a `Packed`.",
        "source",
    ),
    _counter(
        "source_wait_seconds",
        "seconds",
        "Waiting for batches, shared out by the samples of each source in them.",
        "source",
    ),
    # ---- time
    _counter("epoch_seconds", "seconds", "Time within epochs, from the first batch on."),
    _counter("wait_seconds", "seconds", "The part of it spent waiting for batches."),
    _counter("loop_seconds", "seconds", "The part of it spent on the training loop's work."),
    _gauge("startup_seconds", "seconds", "The wait for the first batch, counted nowhere else."),
    _counter(
        "stage_seconds",
        "seconds",
        "Time that a stage of the loader took, over all workers: fetch, collate, encode, decode, "
        "to_device.",
        "stage",
    ),
    # ---- how it goes now
    _gauge("recent_wait_ratio", "ratio", "Share of the time that training waited, over the latest "
           "512 batches: what loading costs."),
    _gauge("recent_batches_per_second", "batches per second", "Over the latest 512 batches."),
    _gauge("recent_samples_per_second", "samples per second", "Over the latest 512 batches."),
    _gauge("recent_queue_depth", "batches", "Batches that were ready when the training loop asked "
           "for one: the mean over the latest 512."),
    # ---- workers and samples
    _gauge("workers", "workers", "Workers that run."),
    _counter("worker_restarts", "restarts", "Workers that died or hung and were replaced."),
    _counter("skipped_samples", "samples", "Samples that raised and were left out."),
    _counter("replaced_samples", "samples", "Samples that raised and were replaced."),
    _counter("worker_batches", "batches", "Batches of one worker that training got.", "worker",
             detail=True),
    _counter("worker_busy_seconds", "seconds", "Time that one worker spent on them.", "worker",
             detail=True),
    _counter("worker_cpu_seconds", "seconds", "CPU time of one worker, threads included.", "worker",
             detail=True),
    _counter("worker_cpu_wait_seconds", "seconds", "How long one worker was ready to run while "
             "others had the CPUs. Linux only.", "worker", detail=True),
    _gauge("worker_resident_bytes", "bytes", "Resident memory of one worker; pages that processes "
           "share count in each.", "worker", detail=True),
    # ---- an endpoint
    _gauge("endpoint_workers", "workers", "Workers that an endpoint may run."),
    _gauge("endpoint_workers_running", "workers", "Workers that an endpoint runs."),
    _gauge("endpoint_sessions", "sessions", "Training processes that an endpoint works for now."),
    _counter("endpoint_sessions", "sessions", "Training processes that it has worked for."),
    _counter("endpoint_kept_out", "connections", "Connections that did not prove to hold the key."),
    _gauge("endpoint_dataset_bytes", "bytes", "Data sets that an endpoint holds, as they came."),
    _counter("endpoint_session_batches", "batches", "Batches made for one training process.",
             "session"),
    _counter("endpoint_session_sent_bytes", "bytes", "Bytes of them.", "session"),
    _gauge("endpoint_session_waiting", "batches", "Batches that one training process has asked for "
           "and no worker has begun.", "session"),
    # ---- a cache
    _counter("cache_hits", "samples", "Samples that were in the cache when they were asked for."),
    _counter("cache_misses", "samples", "Samples that were not, and were made."),
    _counter("cache_hit_bytes", "bytes", "Bytes of samples that were in the cache."),
    _counter("cache_saved_seconds", "seconds", "The time that making these samples had taken."),
    _counter("cache_evicted", "samples", "Samples that went for others which are wanted sooner."),
    _gauge("cache_memory_bytes", "bytes", "Memory of the cache in use, for all of a host."),
    _gauge("cache_memory_limit_bytes", "bytes", "Memory that the cache may take on a host."),
    _gauge("cache_disk_bytes", "bytes", "Files of the cache."),
    # ---- a producer
    _gauge("producer_consumers", "trainings", "Trainings that are connected to a producer."),
    _counter("producer_consumer_batches", "batches", "Batches that one training has taken.",
             "consumer"),
    _gauge("producer_consumer_behind", "batches", "Batches that one training is behind.",
           "consumer"),
)  # fmt: skip

#: By name, in the order in which the documentation has them. A name that is missing is a mistake.
FIGURES: dict[str, Figure] = {figure.name: figure for figure in _TABLE}


def flat(readings: Iterable[Reading]) -> dict[str, float]:
    """For loggers without labels: ``{"swift_loader_batches_total": 12.0, ...}``.

    A reading that is one of several has what it is about after a slash:
    ``swift_loader_stage_seconds_total/fetch``. Figures of single workers are left out.
    """
    return {
        f"{name}/{printable(of)}" if of else name: float(value)
        for name, value, of in readings
        if not FIGURES[name].detail
    }
