"""What a run's figures mean: what loading costs, what to speed up first, and what would help. Pure.

The rules, in their order; each was tried on runs whose bottleneck was known (``tests/process/
test_seeing.py``):

1. Training waits for less than a tenth of its time: the training loop is the bottleneck. Perfect
   loading would save that tenth.
2. The device copy or the decoder is busy for most of the time, and longer than the workers.
3. Two in a hundred waits make up most of the waiting, one sample takes ten times as long as others
   do, and without the slowest batches training would wait for less than half as long: a few slow
   samples. If it would wait for longer, the workers are too slow for the other samples as well.
4. The workers are busy for most of the time. They wait for storage or a network, for a CPU, or they
   compute: the kernel's counts of their time tell.
5. Else no part is busy, and still training waits: the hand-over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swift_loader.telemetry.stats import HAND_OVER, STAGES, Totals, shares
from swift_loader.telemetry.units import format_seconds

__all__ = ["ADVICE", "RARE", "STORAGE", "Evidence", "Verdict", "judge"]

RARE = 0.02  # of the batches
WAITS_LITTLE = 0.1  # below this share of waiting, the training loop itself is what takes the time
_BUSY = 0.5  # a part that is busy for less of the time can't be what everything waits for
_MOST = 0.6  # of the waiting, in the rare long waits
_SLOW = 10.0  # times the mean sample
_REMAINS = 0.5  # of the waiting, without the slow samples: then these are not what to mend first
_STARVED = 0.25  # of the time in which they were to work, workers waited for a CPU
_BLOCKED = 0.5  # of their working time: they neither computed nor waited for a CPU
_SPARE = 0.5  # of the CPUs: there is room for more workers

CPUS = "CPUs"
SLOW_SAMPLES = "slow samples"
STORAGE = "workers: waiting in fetch"

ADVICE = {
    "workers: fetch": "`dataset[i]` takes the workers' time, and it computes. More workers while "
    "there are CPUs (worker_per_consumer), workers on other machines (remote_workers), the option "
    "`cache`, so that each sample is made once, or less work in it, such as smaller images.",
    STORAGE: "`dataset[i]` waits for storage or a network most of its time. "
    "threads_per_worker=8, or more, up to the samples of a batch, lets one worker wait for several "
    "at once; then more workers, also more than CPUs; the option `cache`, for what later epochs "
    "need again; a copy of the data on a local disk, or larger files.",
    "workers: collate": "`collate_fn` takes the workers' time. The default one stacks straight "
    "into shared memory; one of your own costs a copy.",
    "workers: encode": "Encoding takes the workers' time: the batch holds objects that are no "
    "tensors or arrays, or `batch_encoder` is slow.",
    "reader: decode": "Decoding in the training process takes the time: multithread=True, or "
    "batches of fewer and larger tensors.",
    "device copy": "Copying to the device takes the time: a larger max_nb_batch_on_device, "
    "smaller types (uint8 instead of float32), or a cheaper `to_device`.",
    CPUS: "Workers are ready to work and wait for a CPU. More of them don't help, and fewer do as "
    "well. What helps: less work in `dataset[i]`, workers on other machines (remote_workers), or a "
    "machine with more CPUs.",
    SLOW_SAMPLES: "A few samples take very long, and the batches behind them wait. "
    "in_order=False lets other batches pass; a larger data_queue_size bridges the wait; the "
    "slowest samples are named, so that they can be mended.",
    HAND_OVER: "No part is busy, and still training waits: batches so small that handing them "
    "over costs more than making them, or a loop that asks in bursts. A larger batch_size or "
    "data_queue_size helps.",
    STAGES["loop"][1]: "The data keeps up; the training step itself takes the time.",
}


@dataclass(frozen=True)
class Evidence:
    """What is known of a time. `cpu_s`, `cpu_wait_s`: of all workers together, None: not known.

    `rare_wait_share`: how much of the waiting came in the longest 2% of the waits;
    `rare_fetch_share`: the same of the time in `fetch`, by batches. `slowest`:
    ``(index, seconds)`` of the slowest samples.
    """

    totals: Totals
    nb_workers: int = 0
    nb_cpus: int | None = None
    cpu_s: float | None = None
    cpu_wait_s: float | None = None
    rare_wait_share: float = 0.0
    rare_fetch_share: float = 0.0
    slowest: tuple[tuple[Any, float], ...] = ()


@dataclass(frozen=True)
class Verdict:
    """`cost`: the share of the time that perfect loading would save. `advice`: what would help."""

    cost: float
    bottleneck: str
    sentence: str
    advice: str


def judge(evidence: Evidence) -> Verdict:
    """The rules of the module's text."""
    totals = evidence.totals
    if totals.batches == 0:
        return Verdict(0.0, "not known yet", "No batch was delivered.", "")
    if totals.elapsed_s <= 0:
        return Verdict(0.0, "not known yet", "One batch was delivered: too little to tell.", "")
    bottleneck = _bottleneck(evidence)
    cost = totals.wait_share
    waited = f"{format_seconds(totals.wait_s)} of {format_seconds(totals.elapsed_s)}"
    advice = ADVICE[bottleneck]
    if bottleneck == STAGES["loop"][1]:
        costs = f"loading costs {cost:.1%} of the time ({waited})"
        return Verdict(cost, bottleneck, f"The training loop is the bottleneck: {costs}.", advice)
    if bottleneck == SLOW_SAMPLES:
        index, seconds = evidence.slowest[0]
        advice += f" The slowest: sample {index}, {format_seconds(seconds)}."
    elif bottleneck == "workers: fetch" and _has_room(evidence):
        advice += (
            f" There is room: {evidence.nb_cpus} CPUs, {evidence.nb_workers} "
            f"worker{'' if evidence.nb_workers == 1 else 's'}."
        )
    return Verdict(
        cost,
        bottleneck,
        f"Training waited for data {cost:.0%} of the time ({waited}). {_why(bottleneck)}",
        advice,
    )


def _bottleneck(evidence: Evidence) -> str:
    totals = evidence.totals
    if totals.wait_share < WAITS_LITTLE:
        return STAGES["loop"][1]
    busy = shares(totals)
    stages = ("fetch", "collate", "encode")
    workers = sum(busy[stage] for stage in stages)
    apart = max(("decode", "to_device"), key=busy.__getitem__)
    if busy[apart] >= _BUSY and busy[apart] > workers:
        return STAGES[apart][1]
    if _has_slow_samples(evidence, workers - busy["fetch"] * evidence.rare_fetch_share):
        return SLOW_SAMPLES
    if workers < _BUSY:
        return HAND_OVER
    stage = max(stages, key=busy.__getitem__)
    busy_s = totals.fetch_s + totals.collate_s + totals.encode_s
    starved_s = evidence.cpu_wait_s or 0.0
    if stage == "fetch" and evidence.cpu_s is not None:
        blocked_s = busy_s - evidence.cpu_s - starved_s
        if blocked_s > _BLOCKED * busy_s:
            return STORAGE
    return CPUS if starved_s > _STARVED * busy_s else STAGES[stage][1]


def _has_slow_samples(evidence: Evidence, usually_busy: float) -> bool:
    """`usually_busy`: the share of the time that workers need for all but the slowest batches."""
    totals = evidence.totals
    if not evidence.slowest or evidence.rare_wait_share < _MOST or not totals.samples:
        return False
    # An epoch takes as long as the slower of the two: the workers, or the training loop.
    would_wait = usually_busy - (1 - totals.wait_share)
    if would_wait > _REMAINS * totals.wait_share:
        return False
    return evidence.slowest[0][1] > _SLOW * totals.fetch_s / totals.samples


def _has_room(evidence: Evidence) -> bool:
    cpus, totals = evidence.nb_cpus, evidence.totals
    if cpus is None or evidence.cpu_s is None or evidence.nb_workers >= cpus:
        return False
    return evidence.cpu_s / totals.elapsed_s < _SPARE * cpus


def _why(bottleneck: str) -> str:
    return {
        CPUS: f"Bottleneck: {CPUS}, which the workers starve for.",
        STORAGE: f"Bottleneck: {STORAGE}, for storage or a network.",
        SLOW_SAMPLES: f"Bottleneck: {SLOW_SAMPLES}, which hold up the rest.",
        HAND_OVER: f"Bottleneck: {HAND_OVER}; no part of the loader is busy for long.",
    }.get(bottleneck, f"Bottleneck: {bottleneck}.")
