"""Workers behind an endpoint, over loopback: against a bare ZeroMQ stream, and RPCDataloader.

    python -m benchmarks.remote

One endpoint with 2 workers, without encryption and with it (CURVE). The bare stream sends the same
number of bytes from memory that is there already, and its reader copies them as a training loop
does; so it makes no batches, and is what the network alone could do. Runs in turn, each in a fresh
process; ratios within a round. RPCDataloader is measured where the package ``rpcdataloader`` is
installed, with 2 workers as well.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

# Before numpy and torch are imported: one thread each, here and in every process that follows.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np

from benchmarks import fresh
from benchmarks.consumer import Device, nb_bytes
from benchmarks.datasets import Images, Rows, Tokens
from benchmarks.rounds import Rounds, in_turn
from benchmarks.spread import ratios, spread
from benchmarks.workloads import Workload

WORKLOADS = (
    Workload("image-u8", Images, 64, {"dtype": "uint8"}),
    Workload("tokens", Tokens, 32),
    Workload("tiny", Rows, 8),
)
_NB_WORKER = 2
_WARM_S = 0.5
_NB_BUFFER = 10
_LIMIT_S = 60.0


def batches_per_s(batches: Iterator[Any], window_s: float) -> dict[str, float]:
    """Take batches for `window_s` seconds after a warm-up, copying each."""
    device = Device(next(batches))
    _take(batches, device, _WARM_S)
    start_s = perf_counter()
    nb_batch = _take(batches, device, window_s)
    return {"batches_per_s": nb_batch / (perf_counter() - start_s)}


def _take(batches: Iterator[Any], device: Device, window_s: float) -> int:
    nb_batch, end_s = 0, perf_counter() + window_s
    for batch in batches:
        device.take(batch)
        del batch
        nb_batch += 1
        if perf_counter() >= end_s:
            break
    return nb_batch


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
    """A stream of frames of `nb_byte` bytes, and nothing else."""
    import zmq

    from swift_loader.remote.keys import load_keys

    pull: zmq.Socket[Any] = zmq.Context().socket(zmq.PULL)
    pull.set_hwm(_NB_BUFFER)
    keys = load_keys(key)
    if keys is not None:
        keys.secure_server(pull, b"bare")
    port = pull.bind_to_random_port("tcp://127.0.0.1")

    def frames() -> Iterator[Any]:
        while True:
            yield [np.frombuffer(pull.recv(copy=False).buffer, np.uint8)]

    arguments = [str(port), str(nb_byte), key or ""]
    sender = subprocess.Popen([sys.executable, "-m", "benchmarks.remote", "send", *arguments])
    try:
        return batches_per_s(frames(), window_s)
    finally:
        sender.kill()
        sender.wait()


def send(port: str, nb_byte: str, key: str) -> None:
    """The other end of `bare`."""
    import zmq

    from swift_loader.remote.keys import load_keys

    push: zmq.Socket[Any] = zmq.Context().socket(zmq.PUSH)
    push.set_hwm(_NB_BUFFER)
    keys = load_keys(key or None)
    if keys is not None:
        keys.secure_client(push)
    push.connect(f"tcp://127.0.0.1:{port}")
    buffers = [bytearray(b"\1") * int(nb_byte) for _ in range(_NB_BUFFER)]
    while True:
        for buffer in buffers:
            push.send(buffer, copy=False)


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

        def forever() -> Iterator[Any]:
            while True:
                yield from loader

        return batches_per_s(forever(), window_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=1.5, help="seconds of a run (1.5)")
    parser.add_argument("--only", nargs="+", choices=[w.name for w in WORKLOADS])
    chosen = parser.parse_args()
    root = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        key = str(Path(folder) / "key")
        keygen = [sys.executable, "-m", "swift_loader.cli", "keygen", key]
        subprocess.run(keygen, check=True, stdout=subprocess.DEVNULL)
        for workload in WORKLOADS:
            if not chosen.only or workload.name in chosen.only:
                print(_table(workload, measure(workload, chosen.rounds, chosen.window, key)))


def measure(workload: Workload, nb_rounds: int, window_s: float, key: str) -> Rounds:
    """All contestants in turn."""
    call = partial(fresh.call, timeout_s=_LIMIT_S)
    nb_byte = call(_batch_bytes, workload=workload)
    runs: dict[str, Callable[[], dict[str, Any]]] = {}
    for name, secret in (("", None), (" CURVE", key)):
        runs[f"endpoint{name}"] = partial(
            call, endpoint, workload=workload, window_s=window_s, key=secret
        )
        runs[f"bare{name}"] = partial(call, bare, nb_byte=nb_byte, window_s=window_s, key=secret)
    runs["rpcdataloader"] = partial(call, rpcdataloader, workload=workload, window_s=window_s)
    return in_turn(list(runs), lambda name: runs[name](), nb_rounds, workload.name)


def _batch_bytes(workload: Workload) -> int:
    from torch.utils.data import default_collate

    dataset = workload.dataset()
    return nb_bytes(default_collate([dataset[i] for i in range(workload.batch_size)]))


def _table(workload: Workload, rounds: Rounds) -> str:
    lines = [f"\n{workload.name}, batches a second"]
    for name, why in rounds.failures.items():
        lines.append(f"  {name} failed: {why.strip().splitlines()[-1]}")
    columns = {name: rounds.column(name, "batches_per_s") for name in rounds.answers}
    lines += [f"  {name:<16}{spread(column)}" for name, column in columns.items() if column]
    for ours, theirs in (
        ("endpoint", "bare"),
        ("endpoint CURVE", "bare CURVE"),
        ("endpoint", "rpcdataloader"),
        ("endpoint CURVE", "rpcdataloader"),
    ):
        if columns.get(ours) and columns.get(theirs):
            lines.append(f"  {ours} over {theirs}: {ratios(columns[ours], columns[theirs])}")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["send"]:
        send(*sys.argv[2:])
    else:
        main()
