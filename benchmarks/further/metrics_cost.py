"""What sinks cost: a callable, and a page that is scraped as often as the callable is called.

In batches a second, and by what one writing takes of the training process's CPU, which no other
process blurs. ``--quick`` asks for figures five times as often, so that a short run has some.
"""

from __future__ import annotations

import threading
import urllib.request
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import thread_time

from benchmarks.figures import Figure, over
from benchmarks.further.own_timings import WORKLOADS
from benchmarks.further.pairs import measure_in_turn
from benchmarks.measure import batches_per_s
from benchmarks.spread import spread
from benchmarks.workloads import Workload

_BAR = 0.98
_MOST_OF_A_CORE = 0.02
_QUICK_INTERVAL_S = 1.0
_PORT = 19_400


def rate(workload: Workload, on: bool, interval_s: float | None) -> dict[str, float]:
    """Batches a second with or without sinks."""
    from benchmarks.ours import batches
    from swift_loader.telemetry.sinks import pump

    usual_s = pump.INTERVAL_S
    if interval_s is not None:
        pump.INTERVAL_S = interval_s
    written_s: list[float] = []  # CPU time of the thread that reads the figures and writes them

    def sink(figures: dict[str, float]) -> None:
        written_s.append(thread_time())

    sinks = [sink, f"prometheus://127.0.0.1:{_PORT}"] if on else None
    ended = threading.Event()
    with batches(workload, 2, metrics=sinks) as stream:
        scraping = threading.Thread(target=_scrape, args=(ended, pump.INTERVAL_S))
        if on:
            scraping.start()
        found = batches_per_s(stream, workload.window_s, workload.warm_s, workload.warm_batches)
        ended.set()
        if on:
            scraping.join()
    if len(written_s) > 1:
        found["of_a_core"] = (written_s[-1] - written_s[0]) / (len(written_s) - 1) / usual_s
    return found


def _scrape(ended: threading.Event, interval_s: float) -> None:
    while not ended.wait(interval_s):
        with urllib.request.urlopen(f"http://127.0.0.1:{_PORT}/metrics") as page:
            page.read()


def run(is_quick: bool, out: Path) -> list[Figure]:
    """The rate with sinks over the rate without, in many rounds: the effect is small."""
    figures = []
    for name in ("tiny", "tokens"):
        timed = replace(WORKLOADS[name], window_s=1.5 if is_quick else 11.0)
        probe = partial(rate, workload=timed, interval_s=_QUICK_INTERVAL_S if is_quick else None)
        rounds = measure_in_turn(
            f"metrics, {name}",
            {
                "with": partial(probe, on=True),
                "without": partial(probe, on=False),
            },
            is_quick,
            rounds=3 if is_quick else 7,
        )
        on, off = (rounds.column(how, "batches_per_s") for how in ("with", "without"))
        if on and off:
            figures.append(
                over("metrics", f"{name}: batches/s with metrics= over without", on, off, _BAR)
            )
        shares = rounds.column("with", "of_a_core")
        if shares:
            figures.append(
                Figure(
                    "metrics",
                    f"{name}: share of a core that a sink takes, every 5 s",
                    spread(shares),
                    bar=_MOST_OF_A_CORE,
                    bound="at most",
                )
            )
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "metrics"])
