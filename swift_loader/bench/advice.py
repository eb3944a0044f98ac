"""What the measurements say: how many workers, threads and batches ahead, and what to fix first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from swift_loader.bench.trials import Trial
from swift_loader.telemetry.verdict import ADVICE, STORAGE

__all__ = ["Advice", "advise", "as_tried", "helps", "is_busy", "waits"]

_AS_GOOD = 0.9  # of the best: not worth more workers
_BUSY_SHARE = 0.25
_WORTH_MORE = 1.15
_COMPUTES = 0.5  # a data set that computes for less of its time waits for something
_QUEUE = 10
_SLOW_BUILD_S = 5.0


@dataclass(frozen=True)
class Advice:
    """Options to begin with, and sentences that say why."""

    worker_per_consumer: int
    threads_per_worker: int
    data_queue_size: int
    enough: bool | None  # whether that keeps up with the training step; None: it is not known
    reasons: tuple[str, ...]
    fix_first: str


def waits(alone: Trial) -> bool:
    """Whether the data set spends its time waiting (disk, network) rather than computing.

    Time in which it was ready and other processes had the CPUs is no waiting.
    """
    return alone.cpu_share is not None and alone.cpu_share + alone.starved_share < _COMPUTES


def is_busy(others: float, cpus: int) -> bool:
    """Whether what other processes use of the CPUs makes measurements wrong."""
    return others > _BUSY_SHARE * cpus


def helps(trial: Trial, before: Trial) -> bool:
    """Whether `trial`, with more threads or workers, is so much better that still more pay."""
    return trial.batches_per_s > _WORTH_MORE * before.batches_per_s


def advise(
    alone: Trial, ours: Sequence[Trial], torch: Sequence[Trial], cpus: int, step_s: float | None
) -> Advice:
    """From the data set alone, and trials with 1 or more workers of ours and of torch."""
    best = max(ours, key=lambda trial: trial.batches_per_s)
    wanted_per_s = _AS_GOOD * best.batches_per_s
    if step_s is not None:
        wanted_per_s = min(wanted_per_s, 1.05 / step_s)
    fast = [trial for trial in ours if trial.batches_per_s >= wanted_per_s]
    chosen = min(fast, key=lambda trial: (trial.workers * trial.threads, trial.workers))
    enough = None if step_s is None else chosen.batches_per_s * step_s >= 1.0
    reasons = [_why_workers(chosen, best, None if waits(alone) else cpus, step_s)]
    if chosen.threads > 1:
        reasons.append(
            f"Fetching computes for {alone.cpu_share or 0:.0%} of its time and waits for the rest, "
            f"so threads in a worker pay: {chosen.batches_per_s:,.1f} batches/s."
        )
    if waits(alone) and chosen.workers > cpus:
        reasons.append(f"Workers that wait need no CPU, so more of them than the {cpus} CPUs pay.")
    queue = _queue(chosen)
    if queue > _QUEUE:
        reasons.append(
            f"The slowest batches take {chosen.slow_fetch_s or 0:.2g} s to fetch; a queue of "
            f"{queue} bridges that."
        )
    if alone.built_s is not None and alone.built_s > _SLOW_BUILD_S:
        reasons.append(
            f"The data set takes {alone.built_s:.0f} s to build, in each worker too, and once more "
            "for validate=True: give what it reads as an argument, or as a SharedList."
        )
    if torch:
        rival = max(torch, key=lambda trial: trial.batches_per_s)
        ratio = chosen.batches_per_s / rival.batches_per_s
        reasons.append(f"That is {ratio:.2g} times the best of torch's DataLoader.")
    return Advice(
        chosen.workers,
        chosen.threads,
        queue,
        enough,
        tuple(reasons),
        _fix_first(alone, chosen, enough),
    )


def as_tried(advice: Advice, tried: Trial) -> Advice:
    """The advice, with what a trial of just these options gave."""
    reason = f"Tried together, these options gave {tried.batches_per_s:,.1f} batches/s."
    return replace(advice, reasons=(*advice.reasons, reason))


def _why_workers(chosen: Trial, best: Trial, cpus: int | None, step_s: float | None) -> str:
    """`cpus` None: the data set waits, and uses few of them."""
    rate = f"{chosen.batches_per_s:,.1f} batches/s"
    if step_s is not None and chosen.batches_per_s * step_s >= 1.0:
        return f"{rate} keeps up with a training step of {step_s * 1000:.3g} ms."
    if step_s is not None:
        return (
            f"{rate} is the best here, and a training step of {step_s * 1000:.3g} ms would take "
            f"{1 / step_s:,.1f}: training will wait for data."
        )
    if chosen is best:
        more = "" if cpus is None or chosen.workers < cpus else f"; all {cpus} CPUs are in use then"
        return f"It was the fastest: {rate}{more}."
    return f"{rate}; the fastest ({best.name}) is not much better at {best.batches_per_s:,.1f}."


def _queue(trial: Trial) -> int:
    """Enough to go on while the slowest batch of a hundred is made."""
    slow_s = trial.slow_fetch_s or 0.0
    ahead = slow_s * trial.batches_per_s + trial.workers
    return max(_QUEUE, min(64, ceil(ahead)))


def _fix_first(alone: Trial, chosen: Trial, enough: bool | None) -> str:
    if enough:
        return "Nothing: the data keeps up."
    if alone.batches_per_s < chosen.batches_per_s and chosen.bottleneck == "hand-over":
        return ADVICE["workers: fetch"]
    if chosen.bottleneck == STORAGE and waits(alone):
        return (
            "`dataset[i]` waits for storage or a network most of its time, and these were the most "
            "threads and workers that helped. The option `cache` keeps what later epochs need "
            "again; a copy of the data on a local disk, or larger files, shorten the wait."
        )
    return ADVICE.get(chosen.bottleneck or "", ADVICE["workers: fetch"])
