"""One batch in a worker, before anything else is launched: what goes wrong, goes wrong here.

The worker is one like those that follow, alone, and ends with the trial. So a class that can't
travel, a dataset that can't be built, a sample that raises, a batch that can't be collated, encoded
or decoded show themselves when the loader is built, by their own exceptions. The training process
runs nothing of the data set's: its default device, event loop or generators may be others.

It costs no time in the end: the worker waits for the process that all workers are forked from, as
those after it would.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swift_loader.batch.codec import decode
from swift_loader.errors import NoRoomError, WorkerDiedError, WorkerTimeoutError
from swift_loader.order.part import Number
from swift_loader.pipeline import slow_start
from swift_loader.pipeline.link import Event, Gone, MadeBatch, NoMore, NotMade, Refused, Up
from swift_loader.pipeline.local import LocalLink
from swift_loader.plan import Plan
from swift_loader.worker.faults import revive
from swift_loader.worker.launched import Launcher
from swift_loader.worker.place import Place
from swift_loader.worker.recipe import Size

__all__ = ["try_one_batch"]

_WHERE = "the worker that tries one batch (validate)"
_END_S = 5.0
_MANY = 2**62


def try_one_batch(
    launcher: Launcher,
    payload_fd: int,
    batch_size: int,
    seed: int,
    timeout_s: float | None,
    decoder: Callable[[bytes, NDArray[np.uint8]], Any] | None,
    *,
    by_source: bool = False,
    group: tuple[int, int] | None = None,
) -> Size:
    """Make a batch of the first samples and take it apart; returns the length, None of a stream.

    Of a mixture, a batch of the first samples of each source, or (`by_source`) one for each.
    `batch_size` 0: only build the dataset. `group`: what `torch.distributed` says to workers.

    Raises what the user's code raises; `WorkerDiedError` and `WorkerTimeoutError`, for which the
    worker has `timeout_s` once the dataset is built.
    """
    place = Place(0, 1, 1, seed, None, group=group, trial=True, watches_draws=True)
    link = LocalLink(launcher, 0, place, payload_fd, 1)
    try:
        up = _up(link)
        nb_samples: int | None = up.nb_samples
        size = Size(nb_samples, up.lengths)
        if not batch_size or nb_samples == 0:
            return size
        count = _MANY if nb_samples is None else nb_samples
        for number, plan in enumerate(_trials(count, batch_size, seed, up.lengths, by_source)):
            link.set_plan(number, plan)
            link.make(number, Number(number, 0, 0), b"")
            link.flush()
            made = _wait_for(link, MadeBatch, timeout_s)
            if made is not None:
                skeleton, base = made.parcel.open()
                (decoder or decode)(skeleton, base)
        return size
    finally:
        link.close()
        link.wait_closed(time.monotonic() + _END_S)


def _trials(
    count: int, batch_size: int, seed: int, lengths: tuple[int, ...], by_source: bool
) -> list[Plan]:
    """Plans whose first batch is tried."""
    whole = Plan(count, batch_size, 1, False, 0, seed, "balanced")
    if not lengths:
        return [whole]
    starts = list(accumulate(lengths, initial=0))[:-1]
    if by_source:
        return [
            replace(whole, spans=((start, start + length),))
            for start, length in zip(starts, lengths, strict=True)
        ]
    share = max(1, batch_size // len(lengths))
    spans = tuple(
        (start, start + min(length, share)) for start, length in zip(starts, lengths, strict=True)
    )
    return [replace(whole, batch_size=max(batch_size, len(lengths)), spans=spans)]


def _up(link: LocalLink) -> Up:
    """Once the dataset is built."""
    while True:
        try:
            up: Up = _wait_for(link, Up, slow_start.WARNS_AFTER_S)
        except WorkerTimeoutError:
            slow_start.warn_of_slow_start([f"{_WHERE}: {link.stack()}"])
        else:
            return up


def _wait_for(link: LocalLink, kind: type[Any], timeout_s: float | None) -> Any:
    """The event of this kind; None where there is no batch. Raises what the worker says instead."""
    ends_s = None if timeout_s is None else time.monotonic() + timeout_s
    poll = select.poll()
    for fd in link.filenos():
        poll.register(fd, select.POLLIN)
    while True:
        for event in link.receive():
            if isinstance(event, kind):
                return event
            _raise_what_it_says(event)
            if isinstance(event, NoMore):  # an empty stream
                return None
        left_s = None if ends_s is None else ends_s - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise WorkerTimeoutError(
                f"{_WHERE} made none within timeout={timeout_s:g} s. It is\n{link.stack()}"
            )
        poll.poll(None if left_s is None else left_s * 1000)


def _raise_what_it_says(event: Event) -> None:
    match event:
        case Refused(fault=fault):
            raise revive(fault, _WHERE)
        case NotMade(fault=fault) if fault is not None:
            raise revive(fault, _WHERE)
        case Gone(story=story, replace="later"):
            raise NoRoomError(f"{_WHERE}: {story}")
        case Gone(story=story):
            raise WorkerDiedError(f"{_WHERE}: {story}")
        case _:
            pass
