"""Several trainings on one loader: what sharing costs each side, and what it saves.

Beside the ``tensorsocket`` package where it is installed, and beside trainings that each have a
torch DataLoader of their own. A consumer either only takes its batches, or copies every leaf of
them, as everywhere in these benchmarks.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import chain, repeat
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import psutil

from benchmarks import fresh
from benchmarks.consumer import Device
from benchmarks.datasets import cut_jpegs
from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.spread import ratios, spread
from benchmarks.workloads import Workload, table_workloads

OURS, TENSORSOCKET, SEPARATE = "swift_loader", "tensorsocket", "a DataLoader each"
_WINDOW_S = 2.0
_QUICK_WINDOW_S = 1.0
_NB_WARM = 5
_NB_WORKER = 2
_LIMIT_S = 180.0
_FORK = multiprocessing.get_context("fork")


# ---- the sides


def _produce_ours(workload: Workload, port: str, _nb_consumer: int) -> None:
    from benchmarks.ours import loader
    from swift_loader.sharing import TensorProducer

    with loader(workload, _NB_WORKER) as shared, TensorProducer(shared, port) as producer:
        while True:
            for _ in producer:
                pass


@contextmanager
def _consume_ours(workload: Workload, port: str) -> Iterator[Iterator[Any]]:
    from swift_loader.sharing import TensorConsumer

    with TensorConsumer(port) as consumer:
        yield chain.from_iterable(repeat(consumer))


def _produce_tensorsocket(workload: Workload, port: str, nb_consumer: int) -> None:
    from tensorsocket import TensorProducer

    from benchmarks.peers.torch_dataloader import loader

    first = int(port)
    shared = _Tuples(loader(workload, _NB_WORKER))
    producer = TensorProducer(
        shared, port=first, ack_port=first + 1, heart_ports=(first + 2, first + 3)
    )
    while True:
        for _ in producer:
            pass


@contextmanager
def _consume_tensorsocket(workload: Workload, port: str) -> Iterator[Iterator[Any]]:
    from tensorsocket import TensorConsumer

    first = int(port)
    yield chain.from_iterable(
        repeat(
            TensorConsumer(
                port=first,
                ack_port=first + 1,
                heart_ports=(first + 2, first + 3),
                batch_size=workload.batch_size,
            )
        )
    )


class _Tuples:
    """The batches of a loader as tuples: all that tensorsocket takes."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self._loader:
            yield tuple(batch.values()) if isinstance(batch, dict) else tuple(batch)


@contextmanager
def _consume_alone(workload: Workload, port: str) -> Iterator[Iterator[Any]]:
    from benchmarks.peers.torch_dataloader import batches

    with batches(workload, _NB_WORKER) as own:
        yield own


_SIDES: dict[str, tuple[Any, Any]] = {
    OURS: (_produce_ours, _consume_ours),
    TENSORSOCKET: (_produce_tensorsocket, _consume_tensorsocket),
    SEPARATE: (None, _consume_alone),
}


# ---- a run


def share(
    contestant: str, workload: Workload, nb_consumer: int, reads: bool, window_s: float
) -> dict[str, Any]:
    """Rates of all consumers in one window, and the CPU time of each side within it."""
    produce, consume = _SIDES[contestant]
    port = str(_free_ports()) if contestant == TENSORSOCKET else secrets.token_hex(4)
    producer = None
    if contestant == TENSORSOCKET:
        _limit_memory(nb_consumer)
    if produce is not None:
        producer = _FORK.Process(target=produce, args=(workload, port, nb_consumer))
        producer.start()
    pipes = []
    for _ in range(nb_consumer):
        here, there = _FORK.Pipe()
        process = _FORK.Process(target=_consume, args=(there, consume, workload, port, reads))
        process.start()
        there.close()
        pipes.append(here)
    for pipe in pipes:
        _hear(pipe)
    before_s = _all_cpu_s()
    produced_before_s = _all_cpu_s(producer.pid) if producer is not None else 0.0
    for pipe in pipes:
        pipe.send(window_s)
    answers = [_hear(pipe) for pipe in pipes]
    produced_s = (_all_cpu_s(producer.pid) if producer is not None else 0.0) - produced_before_s
    nb_batches = [answer["nb_batches"] for answer in answers]
    return {
        "batches_per_s": sum(a["nb_batches"] / a["wall_s"] for a in answers) / nb_consumer,
        "cpu_s_per_batch_made": produced_s / max(nb_batches),
        "cpu_s_per_batch_taken": sum(a["cpu_s"] for a in answers) / sum(nb_batches),
        "samples_per_cpu_s": sum(nb_batches) * workload.batch_size / (_all_cpu_s() - before_s),
    }


def _consume(pipe: Connection, consume: Any, workload: Workload, port: str, reads: bool) -> None:
    import torch

    torch.set_num_threads(1)
    with consume(workload, port) as batches:
        first = next(batches)
        take: Callable[[Any], object] = Device(first).take if reads else (lambda batch: None)
        del first
        for _ in range(_NB_WARM):
            take(next(batches))
        pipe.send("ready")
        window_s = pipe.recv()
        start_s, start_cpu_s, count = perf_counter(), process_time(), 0
        while (elapsed_s := perf_counter() - start_s) < window_s:
            take(next(batches))
            count += 1
        pipe.send({"nb_batches": count, "wall_s": elapsed_s, "cpu_s": process_time() - start_cpu_s})
        for batch in batches:  # as fast as the others, until the run is over
            take(batch)


def _hear(pipe: Connection) -> Any:
    if not pipe.poll(_LIMIT_S):
        raise TimeoutError("a consumer did not answer")
    return pipe.recv()


def _all_cpu_s(pid: int | None = None) -> float:
    """CPU time of a process (this one) and of all that it started, so far."""
    root = psutil.Process(pid or os.getpid())
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def _limit_memory(nb_consumer: int) -> None:
    """Of the processes to come: what outruns its consumers must not take the whole machine."""
    most_bytes = psutil.virtual_memory().available // (nb_consumer + 2)
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))


def _free_ports() -> int:
    """The first of four TCP ports in a row that nobody listens on."""
    while True:
        first = 20_000 + secrets.randbelow(30_000)
        sockets = [socket.socket() for _ in range(4)]
        try:
            for i, one in enumerate(sockets):
                one.bind(("127.0.0.1", first + i))
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
        return first


# ---- the figures


def run(is_quick: bool, out: Path) -> list[Figure]:
    """What sharing costs, beside tensorsocket, and beside a DataLoader for each training."""
    with tempfile.TemporaryDirectory() as folder:
        cut_jpegs(Path(folder))
        workloads = table_workloads(folder)
        window_s = _QUICK_WINDOW_S if is_quick else _WINDOW_S
        figures = _costs(workloads["image-u8"], is_quick, window_s)
        if find_spec("tensorsocket") is not None:
            for name in ("image-u8", "tokens"):
                for nb_consumer in (1, 4):
                    figures += _beside_tensorsocket(
                        workloads[name], nb_consumer, is_quick, window_s
                    )
        figures += _beside_separate(workloads["jpeg"], is_quick, 2 * window_s)
    return figures


def _costs(workload: Workload, is_quick: bool, window_s: float) -> list[Figure]:
    rounds = measure_in_turn(
        "sharing, consumers that do not read",
        {
            str(count): partial(
                share,
                contestant=OURS,
                workload=workload,
                nb_consumer=count,
                reads=False,
                window_s=window_s,
            )
            for count in (1, 2, 4, 8)
        },
        is_quick,
        partial(fresh.call, timeout_s=_LIMIT_S),
    )
    made = {
        name: [answer["cpu_s_per_batch_made"] for answer in answers]
        for name, answers in rounds.answers.items()
    }
    taken = [answer["cpu_s_per_batch_taken"] for answer in rounds.answers["1"]]
    figures = [
        Figure(
            "sharing",
            f"producer's CPU a batch, {name} consumers over 1",
            ratios(made[name], made["1"]),
            bar=1.1 if name == "8" else None,
            ours=f"{spread(made[name]).median * 1e6:.0f} us",
            theirs=f"{spread(made['1']).median * 1e6:.0f} us",
        )
        for name in ("2", "4", "8")
    ]
    figures.append(
        Figure(
            "sharing",
            "hand-over alone, CPU of a consumer a batch",
            spread([value * 1e6 for value in taken]),
            unit="us",
            bar=100.0,
        )
    )
    return figures


def _beside_tensorsocket(
    workload: Workload, nb_consumer: int, is_quick: bool, window_s: float
) -> list[Figure]:
    return _pair(workload, nb_consumer, TENSORSOCKET, "batches_per_s", 20.0, is_quick, window_s)


def _beside_separate(workload: Workload, is_quick: bool, window_s: float) -> list[Figure]:
    return _pair(workload, 4, SEPARATE, "samples_per_cpu_s", 3.5, is_quick, window_s)


def _pair(
    workload: Workload,
    nb_consumer: int,
    other: str,
    key: str,
    bar: float,
    is_quick: bool,
    window_s: float,
) -> list[Figure]:
    rounds = measure_in_turn(
        f"sharing {workload.name}, {nb_consumer} consumers",
        {
            who: partial(
                share,
                contestant=who,
                workload=workload,
                nb_consumer=nb_consumer,
                reads=True,
                window_s=window_s,
            )
            for who in (OURS, other)
        },
        is_quick,
        partial(fresh.call, timeout_s=_LIMIT_S),
    )
    # A peer that fails in a later round has its earlier ones.
    both = list(zip(*(rounds.answers.get(who, []) for who in (OURS, other)), strict=False))
    if not both:
        return []
    ours, theirs = zip(*((a[key], b[key]) for a, b in both), strict=True)
    unit = key.replace("_per_", "/").replace("_", " ")
    figure = Figure(
        "sharing",
        f"{workload.name}, {nb_consumer} consumer{'s' * (nb_consumer > 1)}: {unit} over {other}",
        ratios(ours, theirs),
        bar=bar,
        bound="at least",
        ours=f"{spread(ours).median:,.1f}",
        theirs=f"{spread(theirs).median:,.1f}",
    )
    return [figure]


if __name__ == "__main__":
    import sys

    from benchmarks import table

    print(table.figures(run("--quick" in sys.argv, Path())))
