"""Workers behind an endpoint, over loopback: against a bare ZeroMQ stream, and RPCDataloader.

One endpoint with 2 workers, without encryption and with it (CURVE). RPCDataloader is measured where
the package ``rpcdataloader`` is installed, with 2 workers as well.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import chain, repeat
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from benchmarks import fresh
from benchmarks.consumer import nb_bytes
from benchmarks.datasets import Images, Rows, Tokens
from benchmarks.figures import Figure, over
from benchmarks.further.pairs import measure_in_turn
from benchmarks.measure import batches_per_s
from benchmarks.workloads import Workload

WORKLOADS = (
    Workload("image-u8", Images, 64, {"dtype": "uint8"}),
    Workload("tokens", Tokens, 32),
    Workload("tiny", Rows, 8),
)
_BARS_OVER_RPCDATALOADER = {"image-u8": 1.3, "tokens": 2.0, "tiny": 4.0}
_BAR_OVER_BARE = 0.8
_NB_WORKER = 2
_WINDOW_S = 1.5
_QUICK_WINDOW_S = 0.8
_LIMIT_S = 60.0


@contextmanager
def serving(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python module that runs, with these arguments, until the block is left."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def said(process: subprocess.Popen[str]) -> str:
    """The ``host:port`` that our own server prints when it is ready."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _await_port(port: str) -> None:
    """Until somebody listens: what prints nothing can't be waited for in another way."""
    deadline_s = perf_counter() + _LIMIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", int(port))).close()
        except OSError:
            if perf_counter() > deadline_s:
                raise
            sleep(0.1)
        else:
            return


def endpoint(workload: Workload, window_s: float, key: str | None) -> dict[str, float]:
    """Ours."""
    from benchmarks.ours import batches

    secured = ["--key", key] if key else []
    serve = ("swift_loader.cli", "serve", "--workers", str(_NB_WORKER), *secured)
    with (
        serving(*serve) as server,
        batches(workload, 0, remote_workers=[f"tcp://{said(server)}"], remote_key=key) as stream,
    ):
        return batches_per_s(stream, window_s)


def bare(nb_byte: int, window_s: float, key: str | None) -> dict[str, float]:
    """The line alone."""
    from benchmarks.bare_stream import frames

    with frames(nb_byte, key) as stream:
        return batches_per_s(stream, window_s)


def rpcdataloader(workload: Workload, window_s: float) -> dict[str, float]:
    """The package of that name."""
    from rpcdataloader import RPCDataloader, RPCDataset

    ports = []
    for _ in range(_NB_WORKER):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(str(free.getsockname()[1]))
    launch = ("rpcdataloader.launch", "--host", "127.0.0.1", "--port")
    with serving(*launch, ports[0]), serving(*launch, ports[1]):
        for port in ports:
            _await_port(port)
        workers = [f"127.0.0.1:{port}" for port in ports]
        dataset = RPCDataset(workers, workload.dataset_class, **workload.dataset_kwargs)
        loader = RPCDataloader(dataset, batch_size=workload.batch_size, shuffle=True)
        return batches_per_s(chain.from_iterable(repeat(loader)), window_s)


def run(is_quick: bool, out: Path) -> list[Figure]:
    """The rates over the bare stream's and RPCDataloader's."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        key = str(Path(folder) / "key")
        keygen = [sys.executable, "-m", "swift_loader.cli", "keygen", key]
        subprocess.run(keygen, check=True, stdout=subprocess.DEVNULL)
        for workload in WORKLOADS:
            figures += _measure(workload, is_quick, key)
    return figures


def _measure(workload: Workload, is_quick: bool, key: str) -> list[Figure]:
    window_s = _QUICK_WINDOW_S if is_quick else _WINDOW_S
    call: Callable[..., Any] = partial(fresh.call, timeout_s=_LIMIT_S)
    nb_byte = call(_batch_bytes, workload=workload)
    probes: dict[str, partial[Any]] = {}
    for name, secret in (("", None), (" with CURVE", key)):
        probes["endpoint" + name] = partial(
            endpoint, workload=workload, window_s=window_s, key=secret
        )
        probes["bare ZeroMQ" + name] = partial(bare, nb_byte=nb_byte, window_s=window_s, key=secret)
    if find_spec("rpcdataloader") is not None:
        probes["rpcdataloader"] = partial(rpcdataloader, workload=workload, window_s=window_s)
    rounds = measure_in_turn(f"endpoints, {workload.name}", probes, is_quick, call)
    columns = {name: rounds.column(name, "batches_per_s") for name in probes}
    over_rpcdataloader = _BARS_OVER_RPCDATALOADER[workload.name]
    return [
        over(
            "endpoints",
            f"{workload.name}: {ours} over {theirs}",
            columns[ours],
            columns[theirs],
            bar,
        )
        for ours, theirs, bar in (
            ("endpoint", "bare ZeroMQ", _BAR_OVER_BARE),
            ("endpoint with CURVE", "bare ZeroMQ with CURVE", _BAR_OVER_BARE),
            ("endpoint", "rpcdataloader", over_rpcdataloader),
            ("endpoint with CURVE", "rpcdataloader", None),
        )
        if columns.get(ours) and columns.get(theirs)
    ]


def _batch_bytes(workload: Workload) -> int:
    from torch.utils.data import default_collate

    dataset = workload.dataset()
    return nb_bytes(default_collate([dataset[i] for i in range(workload.batch_size)]))


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "endpoints"])
