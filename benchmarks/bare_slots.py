"""A bare stand-in for swift_loader: forked workers that stack samples into slots, and nothing else.

What it leaves out is what a loader is for: no errors, no restarts, no resume, no seeds, no timings,
no batch kept past its turn. So it shows what a loader of this design can reach on a machine. In
order, one socket pair a worker, slots in a memfd, batches named by a pickle.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor

from benchmarks.consumer import leaves
from benchmarks.limit import indices_of
from benchmarks.workloads import Workload
from swift_loader.batch.arena import aligned_bytes
from swift_loader.transport.memory import create_region, map_shared, round_up

_FORK = multiprocessing.get_context("fork")
_NB_SLOT = 10  # a worker
_MESSAGE_BYTES = 1 << 15


class _Slot:
    """Where a batch is laid out, from its beginning."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._used_bytes = 0

    def put(self, samples: list[Any]) -> Any:
        """Stack `samples` into the slot; returns what `_views` takes."""
        first = samples[0]
        if isinstance(first, dict):
            return {key: self.put([sample[key] for sample in samples]) for key in first}
        if isinstance(first, (list, tuple)):
            return [self.put(list(column)) for column in zip(*samples, strict=True)]
        is_tensor = isinstance(first, Tensor)
        dtype = first.dtype if is_tensor else torch.int64
        place = self._used_bytes, dtype, (len(samples), *(first.shape if is_tensor else ()))
        room = _views(place, self._memory)
        if is_tensor:
            torch.stack(samples, out=room)
        else:
            room.copy_(torch.tensor(samples))
        self._used_bytes += aligned_bytes(room.nbytes)
        return place


def _views(places: Any, memory: memoryview) -> Any:
    if isinstance(places, tuple):
        offset, dtype, shape = places
        flat = torch.frombuffer(memory, dtype=dtype, count=prod(shape), offset=offset)
        return flat.view(shape)
    if isinstance(places, dict):
        return {key: _views(place, memory) for key, place in places.items()}
    return [_views(place, memory) for place in places]


def _work(workload: Workload, own: slice, memory: list[memoryview], sock: socket.socket) -> None:
    """The worker: a byte names the slot to fill, the answer says what lies in it."""
    dataset = workload.dataset()
    batches = list(indices_of(workload, len(dataset)))[own]
    while True:
        for batch in batches:
            (slot,) = sock.recv(1)
            places = _Slot(memory[slot]).put([dataset[index] for index in batch])
            sock.send(pickle.dumps((slot, places), 5))


@contextmanager
def batches(workload: Workload, nb_worker: int) -> Iterator[Iterator[Any]]:
    """Endless batches. One is overwritten once the next is asked for."""
    dataset = workload.dataset()
    sample = torch.utils.data.default_collate([dataset[0]])
    batch_bytes = sum(aligned_bytes(workload.batch_size * leaf.nbytes) for leaf in leaves(sample))
    slot_bytes = round_up(batch_bytes)
    workers: list[tuple[socket.socket, list[memoryview]]] = []
    processes = []
    for number in range(nb_worker):
        fd = create_region(_NB_SLOT * slot_bytes, "bare")
        region = memoryview(map_shared(fd, _NB_SLOT * slot_bytes))
        os.close(fd)
        memory = [region[i * slot_bytes :][:slot_bytes] for i in range(_NB_SLOT)]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = slice(number, None, nb_worker)
        process = _FORK.Process(target=_work, args=(workload, own, memory, theirs))
        process.start()
        theirs.close()
        workers.append((ours, memory))
        processes.append(process)
    try:
        yield _in_turn(workers)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _in_turn(workers: list[tuple[socket.socket, list[memoryview]]]) -> Iterator[Any]:
    for sock, _ in workers:
        for slot in range(_NB_SLOT):
            sock.send(bytes([slot]))
    while True:
        for sock, memory in workers:
            slot, places = pickle.loads(sock.recv(_MESSAGE_BYTES))
            yield _views(places, memory[slot])
            sock.send(bytes([slot]))
