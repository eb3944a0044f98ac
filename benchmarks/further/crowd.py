"""What many workers, ranks and endpoints cost: CPU a batch, where the samples only wait.

    python -m benchmarks --only crowd

A sample takes 5 ms and hardly any CPU, so two cores show what the loader itself needs for 64
workers. *Training* is the process of a training loop; *machine* is every process of the run: loops,
workers, and whatever stands between them. Beside 1, 4, 16 and 64 workers of one loop, torch's
`DataLoader` with as many; then 8 loops with 8 workers each, and one loop with 16 endpoints of 4.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from benchmarks.contestants import CONTESTANTS, OURS, TORCH
from benchmarks.datasets import Rows
from benchmarks.figures import Figure
from benchmarks.further.endpoints import said, serving
from benchmarks.further.pairs import measure_in_turn
from benchmarks.processes import cpu_s_by_process
from benchmarks.spread import spread
from benchmarks.workloads import Workload

_SAMPLE_S = 0.005
_BATCH_SIZE = 8
_WINDOW_S = 4.0
_QUICK_WINDOW_S = 1.0
_LIMIT_S = 240.0


class Waiting(Rows):
    """Rows that come from somewhere else: 5 ms each."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        time.sleep(_SAMPLE_S)
        return super().__getitem__(index)


WORKLOAD = Workload("waiting", Waiting, _BATCH_SIZE)


def one_loop(contestant: str, nb_worker: int, window_s: float) -> dict[str, float]:
    """One loop with so many workers."""
    with CONTESTANTS[contestant].open()(WORKLOAD, nb_worker) as batches:
        return _watch(batches, nb_worker, window_s)


def ranks(nb_rank: int, nb_worker: int, window_s: float) -> dict[str, float]:
    """`nb_rank` loops, each a process with `nb_worker` workers; sums over all of them."""
    context = multiprocessing.get_context("fork")
    together = context.Barrier(nb_rank)
    results = context.SimpleQueue()
    processes = [
        context.Process(target=_rank, args=(rank, nb_rank, nb_worker, window_s, together, results))
        for rank in range(nb_rank)
    ]
    for process in processes:
        process.start()
    answers = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return {
        "batches_per_s": sum(one["batches_per_s"] for one in answers),
        "training_us": sum(one["training_us"] for one in answers) / nb_rank,
        "machine_us": sum(one["machine_us"] for one in answers) / nb_rank,
        "possible": answers[0]["possible"] * nb_rank,
    }


def _rank(
    rank: int, nb_rank: int, nb_worker: int, window_s: float, together: Any, results: Any
) -> None:
    with _ours(nb_worker, nb_rank, rank) as batches:
        next(batches)
        together.wait(_LIMIT_S)
        results.put(_watch(batches, nb_worker, window_s))
        together.wait(_LIMIT_S)  # nobody ends while another one still counts


def endpoints(nb_endpoint: int, nb_worker: int, window_s: float) -> dict[str, float]:
    """One loop, and `nb_endpoint` endpoints with `nb_worker` workers each."""
    with ExitStack() as stack:
        command = ("swift_loader.cli", "serve", "--workers", str(nb_worker))
        servers = [stack.enter_context(serving(*command)) for _ in range(nb_endpoint)]
        addresses = [f"tcp://{said(server)}" for server in servers]
        batches = stack.enter_context(_ours(0, 1, 0, remote_workers=addresses))
        return _watch(batches, nb_endpoint * nb_worker, window_s)


@contextmanager
def _ours(nb_worker: int, nb_consumer: int, rank: int, **options: Any) -> Iterator[Iterator[Any]]:
    import torch

    from swift_loader import SwiftLoader

    with SwiftLoader(
        Waiting, {}, batch_size=_BATCH_SIZE, nb_consumer=nb_consumer, worker_per_consumer=nb_worker,
        shuffle=True, **options,
    ) as loader:  # fmt: skip
        loader.start(consumer_index=rank, device=torch.device("cpu"))
        yield chain.from_iterable(repeat(loader))


def _watch(batches: Iterator[Any], nb_worker: int, window_s: float) -> dict[str, float]:
    """Take batches for a while, when all workers have been at work for a second."""
    import torch

    torch.set_num_threads(1)
    for _ in range(2 * nb_worker):
        next(batches)
    _take(batches, 1.0)
    before, here_s, start_s = cpu_s_by_process(), time.process_time(), time.perf_counter()
    nb_batch = _take(batches, window_s)
    elapsed_s, here_s = time.perf_counter() - start_s, time.process_time() - here_s
    after = cpu_s_by_process()
    used_s = sum(cpu_s - before.get(pid, 0.0) for pid, cpu_s in after.items())
    return {
        "batches_per_s": nb_batch / elapsed_s,
        "possible": nb_worker / (_SAMPLE_S * _BATCH_SIZE),
        "training_us": here_s * 1e6 / nb_batch,
        "machine_us": used_s * 1e6 / nb_batch,
    }


def _take(batches: Iterator[Any], window_s: float) -> int:
    end_s, count = time.perf_counter() + window_s, 0
    for _ in batches:
        count += 1
        if time.perf_counter() >= end_s:
            break
    return count


def run(is_quick: bool, out: Path) -> list[Figure]:
    """CPU a batch of the loop and of all processes, and the rate beside what is possible."""
    window_s = _QUICK_WINDOW_S if is_quick else _WINDOW_S
    figures = []
    for nb_worker in (1, 16) if is_quick else (1, 4, 16, 64):
        figures += _figures(
            f"{nb_worker} workers",
            {
                who: partial(one_loop, contestant=who, nb_worker=nb_worker, window_s=window_s)
                for who in (OURS, TORCH)
            },
            is_quick,
        )
    many = (2, 4) if is_quick else (8, 8)
    named = {OURS: partial(ranks, nb_rank=many[0], nb_worker=many[1], window_s=window_s)}
    figures += _figures(f"{many[0]} ranks of {many[1]} workers", named, is_quick)
    many = (2, 2) if is_quick else (16, 4)
    named = {OURS: partial(endpoints, nb_endpoint=many[0], nb_worker=many[1], window_s=window_s)}
    figures += _figures(f"{many[0]} endpoints of {many[1]} workers", named, is_quick)
    return figures


def _figures(title: str, probes: dict[str, partial[Any]], is_quick: bool) -> list[Figure]:
    rounds = measure_in_turn(f"crowd, {title}", probes, is_quick, rounds=1 if is_quick else 3)
    figures = []
    for who in rounds.answers:
        rates, possible = rounds.column(who, "batches_per_s"), rounds.column(who, "possible")
        if not rates:
            continue
        training = spread(rounds.column(who, "training_us"))
        machine = spread(rounds.column(who, "machine_us"))
        figures.append(
            Figure(
                "crowd",
                f"{title}: {who}, training process, a batch",
                training,
                unit="us",
                ours=f"{machine} us of all processes",
                theirs=f"{spread(rates)} of {possible[0]:,.0f} batches/s",
            )
        )
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "crowd"])
