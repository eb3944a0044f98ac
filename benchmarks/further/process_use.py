"""Memory and CPU of every process while batches flow as fast as they are taken."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import fresh
from benchmarks.consumer import Device
from benchmarks.contestants import OURS, TORCH
from benchmarks.datasets import Images, Tokens
from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.processes import all_processes
from benchmarks.spread import spread
from benchmarks.workloads import Workload

_WINDOW_S = 1.5
_MODULES = {OURS: "benchmarks.ours", TORCH: "benchmarks.peers.torch_dataloader"}
WORKLOADS = {
    "image-u8": Workload("image-u8", Images, 64, {"dtype": "uint8"}),
    "tokens": Workload("tokens", Tokens, 32),
}


def use(contestant: str, workload: Workload) -> dict[str, Any]:
    """Every process's memory after the window, and the cores that it kept busy within it."""
    import torch

    torch.set_num_threads(1)
    with import_module(_MODULES[contestant]).batches(workload, 2) as batches:
        device = Device(next(batches))
        for _ in range(workload.warm_batches):
            device.take(next(batches))
        before = {each.pid: each.cpu_s for each in all_processes()}
        start_s, nb_batch = perf_counter(), 0
        while (elapsed_s := perf_counter() - start_s) < _WINDOW_S:
            device.take(next(batches))
            nb_batch += 1
        after = all_processes()
    return {
        "nb_batch": nb_batch,
        "processes": [
            asdict(each) | {"cores": (each.cpu_s - before.get(each.pid, 0.0)) / elapsed_s}
            for each in after
        ],
    }


def run(is_quick: bool, out: Path) -> list[Figure]:
    """One line a process: its cores, and its memory (PSS) beside them."""
    figures = []
    for name, workload in WORKLOADS.items():
        rounds = measure_in_turn(
            f"process-use, {name}",
            {who: partial(use, contestant=who, workload=workload) for who in _MODULES},
            is_quick,
            fresh.call_from_nothing,
            rounds=1,
        )
        for who, answers in rounds.answers.items():
            for answer in answers:
                per_batch = _WINDOW_S / answer["nb_batch"] * 1e6
                figures += [
                    Figure(
                        "process-use",
                        f"{name}: {who}, {process['what']}",
                        spread([process["cores"]]),
                        unit="cores",
                        ours=f"{process['pss_bytes'] / 1e6:.0f} MB, "
                        f"{process['nb_threads']} threads",
                        theirs=f"{process['cores'] * per_batch:.0f} us a batch",
                    )
                    for process in answer["processes"]
                ]
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "process-use"])
