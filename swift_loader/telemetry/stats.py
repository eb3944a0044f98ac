"""What `loader.stats()` returns: frozen numbers of one consumer, readable on one screen.

All times are in seconds of wall clock, all sizes in bytes. Pure: no clock, no process is asked.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from textwrap import wrap
from typing import Any, NamedTuple

from swift_loader.telemetry.cache_stats import CacheStats
from swift_loader.telemetry.figures import Reading
from swift_loader.telemetry.html import table
from swift_loader.telemetry.printable import printable
from swift_loader.telemetry.units import format_bytes, format_seconds

__all__ = [
    "HAND_OVER",
    "STAGES",
    "LoaderStats",
    "Recent",
    "SourceStats",
    "StageStats",
    "Totals",
    "WorkerStats",
    "is_measured",
    "shares",
]

# What a batch passes through, in order, and where that happens. "worker" stages run in all workers
# at the same time; the others once a consumer.
STAGES: dict[str, tuple[str, str]] = {
    "fetch": ("worker", "workers: fetch"),
    "collate": ("worker", "workers: collate"),
    "encode": ("worker", "workers: encode"),
    "decode": ("reader", "reader: decode"),
    "to_device": ("device", "device copy"),
    "wait": ("training", "waiting for data"),
    "loop": ("training", "training loop"),
}

HAND_OVER = "hand-over"  # no stage, but what lies between them


class Totals(NamedTuple):
    """Running sums since the first batch. Differences of two of them describe the time between.

    `elapsed_s`: time within epochs, without the wait for the very first batch (`startup_s`), in
    which workers start; `worker_s`: the same, summed over the workers that ran; `wait_s`: what of
    `elapsed_s` the training loop waited for a batch. `queue_depth`: sum over batches.
    """

    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    elapsed_s: float = 0.0
    worker_s: float = 0.0
    startup_s: float = 0.0
    fetch_s: float = 0.0
    collate_s: float = 0.0
    encode_s: float = 0.0
    decode_s: float = 0.0
    to_device_s: float = 0.0
    wait_s: float = 0.0
    queue_depth: int = 0

    @property
    def loop_s(self) -> float:
        """Time the training loop spent on its own work."""
        return max(0.0, self.elapsed_s - self.wait_s)

    @property
    def wait_share(self) -> float:
        """Part of `elapsed_s` in which the training loop waited for a batch."""
        return self.wait_s / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def since(self, before: Totals) -> Totals:
        """What came after `before`."""
        return Totals._make(a - b for a, b in zip(self, before, strict=True))


def is_measured(stage: str, total_s: float) -> bool:
    """Whether there was such a stage: only a loader with a device copies to one."""
    return stage != "to_device" or total_s > 0


def shares(totals: Totals) -> dict[str, float]:
    """How much of the time each stage was busy; a worker stage: of the time of all workers.

    `fetch`, `collate` and `encode` together tell how busy the workers were, 1 at most; `wait` and
    `loop` make 1. What workers made ahead of the time that is looked at counts too: where that is
    more than there was time for, they were busy all the time.
    """
    elapsed_s = totals.elapsed_s
    if elapsed_s <= 0:
        return dict.fromkeys(STAGES, 0.0)
    busy_s = totals.fetch_s + totals.collate_s + totals.encode_s
    worker_s = max(totals.worker_s if totals.worker_s > 0 else elapsed_s, busy_s)
    out = {}
    for stage, (place, _) in STAGES.items():
        seconds: float = getattr(totals, f"{stage}_s")
        out[stage] = min(1.0, seconds / (worker_s if place == "worker" else elapsed_s))
    return out


@dataclass(frozen=True)
class StageStats:
    """One stage over all batches of the run.

    Attributes
    ----------
    total_s:
        Time in this stage, over all batches.
    share:
        How much of the time the stage was busy; of a stage in workers, of the time of all workers.
    mean_s, max_s:
        Mean and longest time of a batch.
    p50_s, p99_s:
        Median and 99th percentile, within 5%.
    """

    total_s: float
    share: float
    mean_s: float
    p50_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True)
class Recent:
    """Figures of the latest 512 batches.

    Attributes
    ----------
    batches_per_s, samples_per_s, bytes_per_s:
        Rates.
    wait_share:
        Part of the time in which training waited for a batch.
    queue_depth:
        Mean number of batches that were ready when the loop asked for one.
    """

    batches_per_s: float = 0.0
    samples_per_s: float = 0.0
    bytes_per_s: float = 0.0
    wait_share: float = 0.0
    queue_depth: float = 0.0


@dataclass(frozen=True)
class WorkerStats:
    """One worker.

    `cpu_s`, `cpu_wait_s` and `rss_bytes` are None if the loader could not look at the process: a
    worker on another host, or one that ended before the loader looked.

    Attributes
    ----------
    worker:
        Its number, from 0 on.
    pid:
        Its process now; None on another host.
    batches:
        How many it made.
    busy_s, busy_share:
        Time that it spent making batches, and that time's share of the loader's `elapsed_s`.
    cpu_s:
        CPU time of its process, threads included, from the process's start on. The time of dead
        processes that it replaced counts too.
    cpu_wait_s:
        How long these processes were ready to run while others had the CPUs. Linux only.
    rss_bytes:
        Its memory, with the pages that it shares with other processes.
    restarts:
        How many times a new process took its place.
    running:
        False once it has ended.
    """

    worker: int
    pid: int | None
    batches: int
    busy_share: float
    cpu_s: float | None
    rss_bytes: int | None
    restarts: int
    busy_s: float = 0.0
    cpu_wait_s: float | None = None
    running: bool = True


@dataclass(frozen=True)
class SourceStats:
    """One source of a mixture.

    Attributes
    ----------
    samples:
        How many samples of it this consumer got.
    share:
        Their part of all samples that this consumer got.
    tokens:
        Tokens in them; None if `Source` was not told how many a sample has.
    wait_s:
        Time for which the training loop waited for batches. The wait for a batch is divided among
        the sources by their samples in it.
    """

    samples: int
    share: float
    tokens: int | None
    wait_s: float


@dataclass(frozen=True)
class LoaderStats:
    """What one consumer's loader has done so far. It prints as one screen; `as_dict` is for JSON.

    Attributes
    ----------
    consumer:
        Which consumer: the rank.
    epoch:
        The epoch at hand; None before the first.
    batches, samples, nbytes:
        How many came out of the loader, over all epochs.
    elapsed_s:
        Time within epochs, since the first batch.
    startup_s:
        The wait for the first batch; counted nowhere else.
    batches_per_s, samples_per_s, bytes_per_s:
        Over `elapsed_s`.
    wait_share:
        Part of `elapsed_s` in which training waited for a batch.
    bottleneck, verdict, advice:
        What to speed up first, that in a sentence, and what to do about it.
    stages:
        By name: fetch, collate, encode, decode, to_device, wait, loop.
    recent:
        Figures of the latest 512 batches.
    queue_depth_mean, queue_depth_max:
        Batches that were ready when the loop asked for one.
    restarts:
        How many times a worker was replaced.
    nb_skipped, nb_replaced:
        How many samples raised an error, and were left out or replaced.
    skipped, replaced:
        The latest 100 of their indices.
    slowest:
        The ten slowest samples, as ``(index, seconds)``. Samples that take less than 10 us on
        average are not timed one by one.
    rare_wait_share, rare_fetch_share:
        How much of the waiting came in the longest 2% of the waits, and how much of the time in
        `fetch` in the 2% of the batches that took longest there.
    nb_running:
        Workers that run now.
    workers:
        A row for each worker.
    others:
        Figures of further parts, such as the cache, by the names that `metrics` gives them.
    cache:
        What the cache has done; None without the option `cache`.
    sources:
        By name: the sources of a mixture.
    """

    consumer: int
    epoch: int | None
    batches: int
    samples: int
    nbytes: int
    elapsed_s: float
    startup_s: float
    batches_per_s: float
    samples_per_s: float
    bytes_per_s: float
    wait_share: float
    bottleneck: str
    verdict: str
    advice: str
    stages: dict[str, StageStats]
    recent: Recent
    queue_depth_mean: float
    queue_depth_max: int
    restarts: int
    nb_skipped: int
    skipped: tuple[int, ...]
    nb_replaced: int
    replaced: tuple[int, ...]
    slowest: tuple[tuple[Any, float], ...]
    rare_wait_share: float
    nb_running: int
    workers: tuple[WorkerStats, ...]
    others: tuple[Reading, ...] = ()
    rare_fetch_share: float = 0.0
    cache: CacheStats | None = None  # with the option `cache`
    sources: dict[str, SourceStats] = field(default_factory=dict)  # of a mixture

    def as_dict(self) -> dict[str, Any]:
        """The same as plain dicts, lists and numbers, ready for `json.dumps`."""
        return asdict(self)

    def __repr__(self) -> str:
        epoch = "" if self.epoch is None else f", epoch {self.epoch}"
        lines = [
            f"swift_loader, consumer {self.consumer}{epoch}: {self.batches:,} batches, "
            f"{self.samples:,} samples, {format_bytes(self.nbytes)} in "
            f"{format_seconds(self.elapsed_s)}",
            f"  {self.batches_per_s:,.1f} batches/s, {self.samples_per_s:,.0f} samples/s, "
            f"{format_bytes(self.bytes_per_s)}/s; first batch after "
            f"{format_seconds(self.startup_s)}",
            *(f"  {line}" for line in wrap(self.verdict, 96)),
            f"  queue depth: mean {self.queue_depth_mean:.1f}, max {self.queue_depth_max}; "
            f"restarts: {self.restarts}; {self._bad_samples()}",
            *([f"  {self.cache}"] if self.cache is not None else []),
            f"  {'stage':<10}{'busy':>8}{'mean':>11}{'p50':>11}{'p99':>11}{'total':>11}",
        ]
        for name, stage in self._measured():
            times = (stage.mean_s, stage.p50_s, stage.p99_s, stage.total_s)
            columns = "".join(f"{format_seconds(time_s):>11}" for time_s in times)
            lines.append(f"  {name:<10}{stage.share:>8.1%}{columns}")
        for source, row in self.sources.items():
            tokens = "" if row.tokens is None else f", {row.tokens:,} tokens"
            lines.append(
                f"  source {source}: {row.samples:,} samples ({row.share:.1%}){tokens}, waited "
                f"{format_seconds(row.wait_s)}"
            )
        if self.workers:
            lines.append(
                f"  {'worker':<10}{'busy':>8}{'batches':>11}{'cpu':>11}{'memory':>11}"
                f"{'pid':>11}{'restarts':>11}"
            )
        shown = self.workers[:_WORKERS_SHOWN]
        for one in shown:
            cpu = "-" if one.cpu_s is None else format_seconds(one.cpu_s)
            rss = "-" if one.rss_bytes is None else format_bytes(one.rss_bytes)
            pid = "-" if one.pid is None else str(one.pid)
            lines.append(
                f"  {one.worker:<10}{one.busy_share:>8.1%}{one.batches:>11,}{cpu:>11}{rss:>11}"
                f"{pid:>11}{one.restarts:>11}"
            )
        if len(self.workers) > len(shown):
            lines.append(f"  and {len(self.workers) - len(shown)} workers more, see .workers")
        if self.slowest:
            some = ", ".join(f"{i} ({format_seconds(s)})" for i, s in self.slowest[:5])
            lines.append(printable(f"  slowest samples: {some}"))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows: list[tuple[object, ...]] = [("stage", "share", "mean", "p50", "p99", "longest")]
        rows += [
            (
                name,
                f"{stage.share:.1%}",
                *map(format_seconds, (stage.mean_s, stage.p50_s, stage.p99_s, stage.max_s)),
            )
            for name, stage in self._measured()
        ]
        told = (
            f"{self.verdict} {self.advice} {self.samples_per_s:,.0f} samples/s, "
            f"{format_bytes(self.bytes_per_s)}/s."
        )
        return table(f"swift_loader, consumer {self.consumer}", told, rows)

    def _measured(self) -> list[tuple[str, StageStats]]:
        """The stages that there were: without a device, none copies to it."""
        return [
            (name, stage) for name, stage in self.stages.items() if is_measured(name, stage.total_s)
        ]

    def _bad_samples(self) -> str:
        parts = []
        for what, count, indices in (
            ("skipped", self.nb_skipped, self.skipped),
            ("replaced", self.nb_replaced, self.replaced),
        ):
            some = ", ".join(map(str, indices[-5:]))
            parts.append(f"{what}: {count:,}" + (f" (latest {some})" if some else ""))
        return "; ".join(parts)


_WORKERS_SHOWN = 16
