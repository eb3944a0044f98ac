"""The table: every contestant on the nine workloads, in turn, as figures beside the bars."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import fresh, measure
from benchmarks.bars import BARS, CPU_OVER_TORCH, CPU_WORKLOADS
from benchmarks.contestants import BARE, CONTESTANTS, LIMIT, OURS, PEERS, TORCH
from benchmarks.datasets import cut_jpegs
from benchmarks.figures import Figure, over
from benchmarks.rounds import Rounds, in_turn
from benchmarks.spread import ratios, spread
from benchmarks.workloads import Workload, table_workloads

NB_WORKER = 2
_QUICK_SHARE = 0.5  # of the windows


def _contestants(workload: Workload, is_quick: bool) -> list[str]:
    here = [c for c in CONTESTANTS.values() if c.is_installed and c.runs(workload)]
    return [*(c.name for c in here if not (is_quick and c.is_slow_to_start)), LIMIT]


def _run(contestant: str, workload: Workload) -> dict[str, Any]:
    answer: dict[str, Any] = fresh.call(
        measure.run, contestant=contestant, workload=workload, nb_worker=NB_WORKER
    )
    return answer


def run(nb_rounds: int, is_quick: bool, only: Collection[str] = ()) -> Iterator[tuple[str, Rounds]]:
    """Measure the workloads (all, or `only` the named ones), each in `nb_rounds` rounds.

    Quick: half the windows, and without the peers that take seconds to start.
    """
    with tempfile.TemporaryDirectory() as folder:
        cut_jpegs(Path(folder))
        for name, workload in table_workloads(folder).items():
            if only and name not in only:
                continue
            if is_quick:
                workload = replace(workload, window_s=workload.window_s * _QUICK_SHARE)
            run_one = partial(_run, workload=workload)
            yield name, in_turn(_contestants(workload, is_quick), run_one, nb_rounds, name)


def best_peer(rounds: Rounds) -> str | None:
    """The peer with the highest median rate; None when none was measured."""
    rates = {peer: rounds.column(peer, "batches_per_s") for peer in PEERS}
    measured = {peer: spread(column).median for peer, column in rates.items() if column}
    return max(measured, key=measured.__getitem__, default=None)


def figures_of(workload: str, rounds: Rounds) -> list[Figure]:
    """Ours over torch's, the best peer's and the limit's rate, and the CPU seconds of a batch."""
    bar = BARS[workload]
    figures = []
    ours = rounds.column(OURS, "batches_per_s")
    for role, against, least in [
        ("", TORCH, bar.over_torch),
        ("best peer, ", best_peer(rounds), bar.over_best_peer),
        ("", BARE, None),
        ("", LIMIT, bar.over_limit),
    ]:
        theirs = rounds.column(against, "batches_per_s") if against else []
        if ours and theirs:
            what = f"batches/s over {role}{against}"
            figures.append(over(workload, what, ours, theirs, least))
    if workload in CPU_WORKLOADS:
        figures += _cpu_figures(workload, rounds)
    return figures


def _cpu_figures(workload: str, rounds: Rounds) -> list[Figure]:
    """CPU of the training process a batch: all of it, and without the consumer's own copying."""
    total = {who: rounds.column(who, "cpu_s_per_batch") for who in (OURS, TORCH)}
    copying = {who: rounds.column(who, "copy_cpu_s_per_batch") for who in (OURS, TORCH)}
    if not all(total.values()):
        return []
    loading = {
        who: [max(a - b, 1e-9) for a, b in zip(total[who], copying[who], strict=True)]
        for who in total
    }
    return [
        Figure(
            workload,
            f"training process CPU a batch, {what}, over torch DataLoader",
            ratios(of[OURS], of[TORCH]),
            bar=CPU_OVER_TORCH if is_barred else None,
            ours=f"{spread(of[OURS]).median * 1e6:.0f} us",
            theirs=f"{spread(of[TORCH]).median * 1e6:.0f} us",
        )
        for what, of, is_barred in [
            ("with the consumer's copy", total, True),
            ("loader alone", loading, False),
        ]
    ]
