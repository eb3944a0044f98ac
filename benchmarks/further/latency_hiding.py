"""Workers behind a long line: how much of an endpoint's rate is left with 20 ms each way.

    python -m benchmarks --only latency-hiding

Between the loader and an endpoint with 2 workers stands a relay that holds every byte back for the
delay, in both directions, and lets any number be under way: what ``tc netem`` does to a link, also
where the kernel does not have it. Beside it, in turn, the same relay without a delay.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.further.endpoints import WORKLOADS, said, serving
from benchmarks.further.pairs import measure_in_turn
from benchmarks.measure import batches_per_s
from benchmarks.spread import ratios, spread
from benchmarks.workloads import Workload

_NB_WORKER = 2
_DELAY_S = 0.020
_WINDOW_S = 2.0
_BAR = 0.9


def delayed(workload: Workload, delay_s: float) -> dict[str, float]:
    """Batches a second from an endpoint behind the relay."""
    from benchmarks.ours import batches

    with serving("swift_loader.cli", "serve", "--workers", str(_NB_WORKER)) as server:
        relay = ("benchmarks.relay", said(server).rpartition(":")[2], str(delay_s))
        with (
            serving(*relay) as line,
            batches(workload, 0, remote_workers=[f"tcp://127.0.0.1:{said(line)}"]) as stream,
        ):
            return batches_per_s(stream, _WINDOW_S)


def run(is_quick: bool, out: Path) -> list[Figure]:
    """The rate with the delay over the rate without."""
    figures = []
    for workload in WORKLOADS:
        probes = {
            name: partial(delayed, workload=workload, delay_s=delay_s)
            for name, delay_s in (("delayed", _DELAY_S), ("at once", 0.0))
        }
        rounds = measure_in_turn(f"latency-hiding, {workload.name}", probes, is_quick)
        late, prompt = (rounds.column(name, "batches_per_s") for name in probes)
        figures.append(
            Figure(
                "latency-hiding",
                f"{workload.name}: {_DELAY_S * 1e3:.0f} ms each way over none",
                ratios(late, prompt),
                bar=_BAR,
                bound="at least",
                ours=f"{spread(late).median:,.0f} batches/s",
                theirs=f"{spread(prompt).median:,.0f} batches/s",
            )
        )
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "latency-hiding"])
