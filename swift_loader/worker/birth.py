"""The birth of a worker, of every kind: a child process, one of an endpoint, a Ray actor, a process
of data pipes.

The order is that of torch's workers, except that the data set is built here and not sent:

1. `settle`: surroundings, CPUs, threads (a child process also: signals and stacks, in `enter`);
2. seeds of `random`, `numpy.random` and torch: the loader's seed plus the worker's id;
3. the user's things are unpacked, the data set is built;
4. `torch.utils.data.get_worker_info()` gives id, number of workers, seed and data set;
5. `worker_init_fn(id)`.

What goes wrong is a `BirthError`, which holds what is sent to the training process.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import random
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import numpy as np
import numpy.random  # at once for all workers: numpy itself imports it when it is first used
import torch
import torch.utils.data
from torch.utils.data._utils import worker as torch_worker

from swift_loader.batch.large import holds
from swift_loader.batch.shipping import hold_large, unpack
from swift_loader.batch.wrapped import keep_epochs_apart
from swift_loader.telemetry.log import LogHandle, open_log, worker_role
from swift_loader.transport.channel import Channel, ChannelClosedError
from swift_loader.transport.memory import map_private, map_shared
from swift_loader.transport.messages import ErrorReport
from swift_loader.worker import signals
from swift_loader.worker.breakpoints import explain_breakpoints
from swift_loader.worker.faults import report
from swift_loader.worker.place import Place
from swift_loader.worker.progress import Progress
from swift_loader.worker.rank_watch import tell_group
from swift_loader.worker.recipe import (
    Recipe,
    build_dataset,
    lengths_of_sources,
    recipe_of,
)
from swift_loader.worker.script import state
from swift_loader.worker.shard import StreamInfo, is_used_up
from swift_loader.worker.split import Split
from swift_loader.worker.untouched import Untouched, holds_the_object
from swift_loader.worker.zygote import Inherited, Spawn

__all__ = [
    "Birth",
    "BirthError",
    "announce",
    "enter",
    "have_large",
    "leave",
    "read_payload",
    "seed_of",
    "seed_worker",
    "settle",
    "step",
]


class BirthError(Exception):
    """The worker could not be born; `fault` says why."""

    def __init__(self, fault: ErrorReport) -> None:
        super().__init__(fault.message)
        self.fault = fault


@contextmanager
def step(doing: str) -> Iterator[None]:
    """A part of the birth, with code of the user's. Raises `BirthError` for what it raises."""
    try:
        yield
    except ChannelClosedError:
        raise  # the training process does not want us any more
    except BaseException as error:
        raise BirthError(report(error, doing)) from error


def enter(spawn: Spawn, inherited: Inherited) -> tuple[Channel, Progress]:
    """The first of all in a child process of the zygote: it becomes a worker."""
    os.register_at_fork(after_in_child=signals.restore)
    spawn.surroundings.enter()
    faulthandler.enable(2)  # the descriptor: `sys.stderr` may have none, in a notebook or a test
    faulthandler.register(signals.STACK_SIGNAL, file=inherited.stack, all_threads=True)
    explain_breakpoints()
    signals.make_room()
    settle(spawn.place, spawn.index, os.environ)
    progress_map = map_shared(inherited.progress, Progress.NBYTES)
    os.close(inherited.progress)
    channel = Channel(socket.socket(fileno=inherited.channel))
    return channel, Progress(memoryview(progress_map))


def leave(status: int) -> NoReturn:
    """What every child process ends with."""
    atexit._run_exitfuncs()  # what the dataset registered, and its process pools
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def settle(place: Place, index: int, environ: Mapping[str, str]) -> None:
    """CPUs and threads: one process a core is the plan, a worker computes with one thread.

    The user may say more, by ``OMP_NUM_THREADS``.
    """
    if place.affinity and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, place.affinity[index % len(place.affinity)])
    # OpenMP's threads do not come along in a fork, and it waits for them for ever.
    torch.set_num_threads(1 if state.forked else _nb_threads(environ.get("OMP_NUM_THREADS", "")))


def _nb_threads(text: str) -> int:
    """Of OpenMP's list, a number for each level of nesting, the first; 1 where there is none."""
    first = text.partition(",")[0].strip()
    return max(1, int(first)) if first.isdecimal() else 1


def read_payload(fd: int) -> memoryview:
    """The user's things as they were shipped. Pages that are written to are this process's own."""
    return memoryview(map_private(fd, os.fstat(fd).st_size))


def have_large(payload_fd: int) -> None:
    """In the process that a worker is forked from next: see `swift_loader.batch.large`."""
    status = os.fstat(payload_fd)
    payload = status.st_dev, status.st_ino, status.st_size
    if not holds(payload):
        hold_large(read_payload(payload_fd), payload)


def seed_worker(seed: int) -> None:
    """Seed the generators of this process as torch seeds those of its workers."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


def announce(place: Place, index: int, dataset: Any) -> None:
    """Let `torch.utils.data.get_worker_info()` give the place among this consumer's workers."""
    torch_worker._worker_info = Info(place, index, dataset)


class Info(torch_worker.WorkerInfo):
    """What `get_worker_info()` gives in a worker of a map-style data set.

    `seed` is another one in each epoch, as where torch starts its workers anew: who draws from it
    for each sample is not to draw the same in every epoch. In the first, it is that of the birth.
    """

    _base: tuple[int, int]

    def __init__(self, place: Place, index: int, dataset: Any) -> None:
        super().__init__(
            id=place.id_of(index),
            num_workers=place.worker_per_consumer,
            seed=seed_of(place, index),
            dataset=dataset,
        )
        object.__setattr__(self, "_base", (place.seed % 2**63, place.consumer_index))

    def epoch_begins(self, epoch: int) -> None:
        """A batch of this epoch is made next."""
        seed = (self._base[0] + self.id) % 2**63
        if epoch:
            (drawn,) = np.random.SeedSequence((*self._base, epoch)).generate_state(1)
            seed = int(drawn) + self.id
        object.__setattr__(self, "seed", seed)  # it is frozen


def seed_of(place: Place, index: int) -> int:
    """The loader's seed plus the worker's id. Fits a tensor of int64, as torch's does."""
    return (place.seed + place.id_of(index)) % 2**63


class Birth:
    """Steps 2 to 5 for a worker that makes batches of a data set.

    `recipe`, `dataset` and `nb_samples` (None: a stream) are there after `complete`.
    """

    recipe: Recipe
    dataset: Any
    nb_samples: int | None

    def __init__(self, place: Place, index: int) -> None:
        self._place = place
        self._index = index
        self.seed = seed_of(place, index)
        self.log: LogHandle | None = None
        self.split = Split(place, index)
        self._payload: Callable[[], memoryview]
        self._untouched = Untouched()

    def complete(self, payload: Callable[[], memoryview]) -> None:
        """Of the user's things, as they were shipped. Raises `BirthError`.

        `payload` gives them anew each time: the data set may write to arrays that lie there.
        """
        place, index = self._place, self._index
        self._payload = payload
        with step("importing the script (start_method='main'; 'fresh' does without)"):
            state.check()
        with step("unpacking the dataset's class and arguments"):
            if place.log is not None:
                self.log = open_log(place.log, worker_role(place.consumer_index, index))
                self.log.logger.info("worker started, pid {}", os.getpid())
            seed_worker(self.seed)
            self.recipe = recipe = recipe_of(unpack(payload()))
        if place.group is not None:
            tell_group(*place.group)
        with step("building the dataset"), self.split.watching():
            self.dataset, self.nb_samples = build_dataset(recipe)
        keep_epochs_apart(self.dataset, recipe.transform, recipe.collate_fn)
        if self.nb_samples is None:
            self.split.look_at(self.dataset, recipe.dataset_kwargs)
            if is_used_up(self.dataset):
                self.will_change()
        self._announce(self.dataset)
        if recipe.worker_init_fn is not None:
            with step("running worker_init_fn"), self.split.watching():
                recipe.worker_init_fn(place.id_of(index))

    def will_change(self) -> None:
        """The data set is told something, or used up, next: keep a copy if nothing else gives it
        as it was.
        """
        if state.forked and holds_the_object(self.recipe):
            self._untouched.keep(self.dataset)

    def build_again(self) -> Any:
        """The data set as it was at this worker's birth, whatever was done to it since.

        Raises `StateError` for one that was forked and can't be copied.
        """
        recipe = recipe_of(unpack(self._payload()))
        with self._watching():
            dataset, _ = build_dataset(recipe)  # a forked one may be the very object that was used
            dataset = self._untouched.instead_of(dataset)
            keep_epochs_apart(dataset)
            self._announce(dataset)
            if recipe.worker_init_fn is not None:
                recipe.worker_init_fn(self._place.id_of(self._index))
        return dataset

    def _watching(self) -> AbstractContextManager[None]:
        return self.split.watching()

    def _announce(self, dataset: Any) -> None:
        if self.nb_samples is None:
            info = StreamInfo(self.split, self._place.seed % 2**63, dataset, at_birth=True)
            torch_worker._worker_info = info
        else:
            announce(self._place, self._index, dataset)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the sources of a mixture."""
        return lengths_of_sources(self.dataset)

    @property
    def dataset_name(self) -> str:
        return type(self.dataset).__qualname__

    def close(self) -> None:
        """Close the log."""
        if self.log is not None:
            self.log.logger.info("worker ends")
            self.log.close()
