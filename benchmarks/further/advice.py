"""Whether the advice of a verdict helps: each is followed, and the run is measured again.

A prepared run has one bottleneck, which `loader.stats()` must name. Then the first thing that the
advice names is done, and nothing else. The figure is samples a second after over before.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, over
from benchmarks.further.pairs import measure_in_turn

WARM_S, WINDOW_S = 1.0, 2.0


class Waits:
    """Samples that wait, as for a disk; one in `rare` waits `rare_s`."""

    def __init__(self, wait_s: float, rare: int = 0, rare_s: float = 0.0) -> None:
        self.wait_s, self.rare, self.rare_s = wait_s, rare, rare_s

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> int:
        is_rare = self.rare and index % self.rare == 0
        time.sleep(self.rare_s if is_rare else self.wait_s)
        return index


class Computes(Waits):
    """Samples that compute for so long."""

    def __getitem__(self, index: int) -> int:
        until_s = time.thread_time() + self.wait_s
        while time.thread_time() < until_s:
            pass
        return index


class Small(Waits):
    """Samples that are there already."""

    def __getitem__(self, index: int) -> int:
        return index


class Rows:
    """Rows of random numbers, views of one array."""

    def __init__(self, dtype: str, width: int = 150_000) -> None:
        self.rows = np.ones((64, width), dtype)

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        return self.rows[index % len(self.rows)]


def through_lists(rows: list[Any]) -> Any:
    """A `collate_fn` that goes through Python's numbers."""
    import torch

    return torch.tensor([row[:2000].tolist() for row in rows])


def slow_copy(batch: Any, device: Any) -> Any:
    """A `to_device` over a line of 1 GB/s."""
    time.sleep(batch.nbytes / 1e9)
    return batch


@dataclass(frozen=True)
class Trial:
    """`before` and `after`: the options of the run with the bottleneck, and what is changed."""

    bottleneck: str
    advice: str
    dataset: Any
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    instead: Any = None  # of `dataset`
    at_least: float = 1.1


def trials() -> list[Trial]:
    """One for each advice that can be followed on one machine."""
    few = {"worker_per_consumer": 1, "batch_size": 16}
    return [
        Trial("workers: waiting in fetch", "threads_per_worker=8",
              partial(Waits, 0.004), few, {"threads_per_worker": 8}),
        Trial("workers: fetch", "more workers",
              partial(Computes, 0.001), few, {"worker_per_consumer": 2}),
        Trial("CPUs", "fewer workers do as well",
              partial(Computes, 0.001), {**few, "worker_per_consumer": 8},
              {"worker_per_consumer": 2}, at_least=0.95),
        Trial("workers: collate", "the default collate_fn",
              partial(Rows, "float32", 2000), {**few, "collate_fn": through_lists},
              {"collate_fn": None}),
        Trial("slow samples", "in_order=False",
              partial(Waits, 0.0005, 3000, 1.0),
              {**few, "worker_per_consumer": 2, "data_queue_size": 4, "shuffle": True},
              {"in_order": False}),
        Trial("device copy", "smaller types",
              partial(Rows, "float32"), {**few, "to_device": slow_copy}, {},
              partial(Rows, "uint8")),
        Trial("hand-over", "a larger batch_size",
              partial(Small, 0.0), {**few, "batch_size": 1}, {"batch_size": 16}),
    ]  # fmt: skip


def rate(trial: Trial, is_followed: bool) -> dict[str, Any]:
    """Samples a second with a loop that does nothing, and whether its bottleneck is named."""
    import torch

    from swift_loader import SwiftLoader

    torch.set_num_threads(1)
    random.seed(0)
    options = {**trial.before, **(trial.after if is_followed else {})}
    to_device = options.pop("to_device", None)
    dataset = trial.instead if is_followed and trial.instead is not None else trial.dataset
    with SwiftLoader(dataset(), validate=False, **options) as loader:
        loader.start(0, torch.device("cpu"), to_device)
        began_s = time.perf_counter()
        counted, since_s = 0, 0.0
        for batch in loader:
            now_s = time.perf_counter()
            if not since_s:
                since_s = now_s if now_s - began_s > WARM_S else 0.0
                continue
            counted += len(batch)
            if now_s - since_s > WINDOW_S:
                break
        said = loader.stats().bottleneck
    return {"samples_per_s": counted / (now_s - since_s), "is_named": said == trial.bottleneck}


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Samples a second with the advice followed over without, and how often it was given."""
    figures = []
    for trial in trials():
        rounds = measure_in_turn(
            f"advice, {trial.bottleneck}",
            {
                "followed": partial(rate, trial=trial, is_followed=True),
                "before": partial(rate, trial=trial, is_followed=False),
            },
            is_quick,
        )
        after, before = (rounds.column(how, "samples_per_s") for how in ("followed", "before"))
        named = rounds.column("before", "is_named")
        if not after or not before:
            continue
        figures.append(
            over(
                "advice",
                f"{trial.bottleneck}, named in {sum(named):.0f} of {len(named)}: {trial.advice}",
                after,
                before,
                trial.at_least,
            )
        )
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "advice"])
