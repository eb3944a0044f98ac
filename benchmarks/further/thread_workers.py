"""Workers that are threads beside workers that are processes, and beside SPDL's threads.

2 workers, shuffled. The samples of `jpeg` (decoded by Pillow) and `image-u8` (numpy) release the
GIL for most of their time; those of `tiny` never do, and show what threads cost then.
"""

from __future__ import annotations

import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.contestants import OURS
from benchmarks.datasets import cut_jpegs
from benchmarks.figures import Figure, over
from benchmarks.further.pairs import measure_in_turn
from benchmarks.measure import batches_per_s
from benchmarks.rounds import Rounds
from benchmarks.workloads import Workload, table_workloads

NB_WORKER = 2
THREADS, SPDL = "swift_loader, threads", "SPDL, threads"
BAR_OVER_SPDL = 1.1
ON = ("jpeg", "image-u8", "tiny")


def rate(contestant: str, workload: Workload, window_s: float) -> dict[str, float]:
    """Batches a second."""
    if contestant == SPDL:
        from benchmarks.peers.spdl_pipeline import batches_of_threads

        opened: Any = batches_of_threads(workload, NB_WORKER)
    else:
        from benchmarks import ours

        method = "thread" if contestant == THREADS else "auto"
        opened = ours.batches(workload, NB_WORKER, start_method=method)
    with opened as batches:
        return batches_per_s(batches, window_s)


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Rate of threads over that of the others, on each workload."""
    others = [OURS, *([SPDL] if find_spec("spdl") else [])]
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        cut_jpegs(Path(folder))
        for on in ON:
            workload = table_workloads(folder)[on]
            rounds = measure_in_turn(
                f"threads, {on}",
                {
                    who: partial(
                        rate, contestant=who, workload=workload, window_s=0.5 if is_quick else 2.0
                    )
                    for who in [THREADS, *others]
                },
                is_quick,
            )
            figures += _figures(on, rounds, others)
    return figures


def _figures(on: str, rounds: Rounds, others: list[str]) -> list[Figure]:
    figures = []
    mine = rounds.column(THREADS, "batches_per_s")
    for who in others:
        theirs = rounds.column(who, "batches_per_s")
        if mine and theirs:
            what = f"{on}: threads over {who if who == SPDL else 'processes'}"
            bar = BAR_OVER_SPDL if who == SPDL and on != "tiny" else None
            figures.append(over("threads", what, mine, theirs, bar))
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "threads"])
