"""Workers killed, stopped and continued at random moments: what is delivered stays the same."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from swift_loader import SwiftLoader
from tests import datasets

pytestmark = pytest.mark.usefixtures("nothing_left")

_QUEUE = 6
_BATCHES = 16  # an epoch
_LONGEST_WAIT_S = 0.02
_GENEROUS_S = 60.0


class Chaos:
    """Kills, stops and continues a loader's workers from a thread of its own.

    Between two deaths the training loop gets more batches than can be under way, so that no batch
    is hit twice: that would be an error, and rightly so.
    """

    def __init__(self, loader: SwiftLoader, seed: int, rounds: int) -> None:
        self._loader = loader
        self._random = random.Random(seed)
        self._rounds = rounds
        self._delivered = 0
        self._calm = threading.Condition()
        self._given_up = False
        self.kills = 0
        self.stops = 0
        self._thread = threading.Thread(target=self._run, name="chaos")
        self._thread.start()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def delivered(self) -> None:
        """The training loop got a batch."""
        with self._calm:
            self._delivered += 1
            self._calm.notify_all()

    def end(self) -> None:
        with self._calm:
            self._given_up = True
            self._calm.notify_all()
        self._thread.join()

    def _run(self) -> None:
        for _ in range(self._rounds):
            self._pause()
            what = self._random.choice(["kill", "kill", "kill", "stop", "stop and kill"])
            worker = self._random.choice(self._loader.stats().workers)
            if worker.pid is None:
                continue
            try:
                self._disturb(psutil.Process(worker.pid), what)
            except psutil.NoSuchProcess:
                continue  # the one before is not replaced yet
            if what != "stop":
                self._wait_for_batches(2 * _QUEUE)
            if self._given_up:
                return

    def _disturb(self, worker: psutil.Process, what: str) -> None:
        if "stop" in what:
            worker.send_signal(signal.SIGSTOP)
            self.stops += 1
            self._pause()
        if "kill" in what:
            worker.send_signal(signal.SIGKILL)
            self.kills += 1
        else:
            worker.send_signal(signal.SIGCONT)

    def _pause(self) -> None:
        threading.Event().wait(self._random.random() ** 2 * _LONGEST_WAIT_S)

    def _wait_for_batches(self, count: int) -> None:
        with self._calm:
            wanted = self._delivered + count
            self._calm.wait_for(
                lambda: self._delivered >= wanted or self._given_up, timeout=_GENEROUS_S
            )


@contextmanager
def chaos(loader: SwiftLoader, seed: int, rounds: int) -> Iterator[Chaos]:
    disturbing = Chaos(loader, seed, rounds)
    try:
        yield disturbing
    finally:
        disturbing.end()


def plain(batch: dict[str, Any]) -> tuple[Any, ...]:
    return batch["index"].tolist(), batch["draws"].tolist(), batch["text"]


def disturb(mode: str, rounds: int) -> None:
    """Two loaders side by side, one of them disturbed; with an early end to some epochs."""
    options: dict[str, Any] = {
        "dataset_class": datasets.Drawn,
        "dataset_kwargs": {"n": 3 * _BATCHES},
        "batch_size": 3,
        "shuffle": True,
        "nearby_shuffle": 0,
        "data_queue_size": _QUEUE,
        "max_worker_restarts": 10**6,
        "timeout": _GENEROUS_S,
        "in_order": mode != "first ready",
        "multithread": mode != "one reader",
    }
    choose = random.Random(mode)
    with (
        SwiftLoader(**options, worker_per_consumer=3) as loader,
        SwiftLoader(**options) as undisturbed,
    ):
        if mode in ("reader a worker", "one reader"):
            loader.start(0, to_device=lambda batch, device: batch)
        else:
            loader.start(0)
        undisturbed.start(0)
        with chaos(loader, seed=len(mode), rounds=rounds) as disturbing:
            while not disturbing.over:
                stop_at = choose.choice([1, _BATCHES // 2, _BATCHES - 1, *[_BATCHES] * 4])
                if mode == "first ready":
                    stop_at = _BATCHES  # which ones come before an early end is open
                got, want = [], []
                for batch, reference in zip(loader, undisturbed, strict=True):
                    disturbing.delivered()
                    got.append(plain(batch))
                    want.append(plain(reference))
                    if len(got) == stop_at:
                        break
                assert len(got) == stop_at
                if mode == "first ready":
                    got, want = sorted(got), sorted(want)
                assert got == want
        assert disturbing.kills > rounds // 3
        assert disturbing.stops > rounds // 10
        # One that was dead already may have been killed again.
        assert rounds // 4 < loader.stats().restarts <= disturbing.kills


MODES = ["inline", "reader a worker", "one reader", "first ready"]


@pytest.mark.parametrize("mode", MODES)
def test_sequence_is_that_of_an_undisturbed_run(mode: str) -> None:
    disturb(mode, rounds=100)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
def test_sequence_is_that_of_an_undisturbed_run_for_long(mode: str) -> None:
    disturb(mode, rounds=3000)
