"""Producers, consumers and ranks that are hit: the others go on, or are told plainly."""

from __future__ import annotations

import faulthandler
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from swift_loader import SwiftLoader
from swift_loader.errors import LoaderError
from swift_loader.sharing import TensorConsumer, TensorProducer
from tests import datasets
from tests.chaos.hits import descendants
from tests.chaos.seeds import rounds
from tests.chaos.test_kills import Progress, within_s
from tests.process.sharing.parties import Numbers, Party, expected, number_of, say, starting
from tests.ranks import run_ranks

pytestmark = pytest.mark.filterwarnings("ignore")

NB_BATCHES = 60
PORT = "5557"


@pytest.fixture
def party(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Party]]:
    """Starts parties that share a folder of their own, in which nothing may be left."""
    folder = tempfile.mkdtemp(prefix="chaos-")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    with starting() as start:
        yield start
    shutil.rmtree(folder)


def serve(nb_consumers: int, from_loader: bool) -> int:
    """Two epochs; the consumers may be dropped, and may die."""
    faulthandler.disable()  # of pytest: it would tell of every SIGSEGV
    loader: Any = Numbers(NB_BATCHES)
    if from_loader:
        loader = SwiftLoader(
            datasets.Numbers, {"n": NB_BATCHES}, worker_per_consumer=2, validate=False
        )
    with TensorProducer(loader, PORT, lag_timeout=2.0, wait_for=nb_consumers) as producer:
        say("up")
        for _ in range(2):
            for _ in producer:
                time.sleep(0.002)
        producer.join()
    if from_loader:
        loader.close()
    return 1


def read(reconnect: float | None, from_loader: bool) -> tuple[list[list[int]], str, float]:
    """The numbers of two epochs, the plain error that ended them, if one did, and the longest wait
    for a batch or that error, once the first batch was there.
    """
    faulthandler.disable()
    epochs: list[list[int]] = []
    progress = Progress()
    try:
        with TensorConsumer(PORT, reconnect=reconnect) as consumer:
            for epoch in range(2):
                epochs.append([])
                for batch in consumer:
                    epochs[-1].append(int(batch[1]) if from_loader else number_of(batch))
                    if epoch == 0 and len(epochs[0]) == 1:
                        say("up")  # all are here: the first epoch waits for that
                        progress = Progress()
                    progress()
    except LoaderError as error:
        progress()
        return epochs, type(error).__name__, progress.longest_s
    return epochs, "", progress.longest_s


def hit_some(party: Callable[..., Party], seed: int, nb_hits: int) -> Counter[str]:
    """A producer and three consumers. Two of those are hit, or the producer's workers, or it."""
    draw = random.Random(seed)
    from_loader = draw.random() < 0.5
    whom = draw.choice(
        ["consumers", "producer", "workers"] if from_loader else ["consumers", "producer"]
    )
    producer = party(serve, 3, from_loader)
    producer.hear()
    readers = [party(read, None, from_loader) for _ in range(3)]
    for reader in readers:
        reader.hear()
    victims = {"consumers": readers[:2], "producer": [producer]}.get(whom, [])
    was_killed: set[int] = set()
    for _ in range(nb_hits):
        time.sleep(draw.random() ** 2 * 0.1)
        pids = [victim.pid for victim in victims if victim.pid not in was_killed]
        if whom == "workers":
            below = descendants(producer.pid)
            pids = sorted(process.pid for process in below)
        if not pids:
            continue
        how = draw.choice(["kill", "stop", "segv"])
        numbers = {
            "kill": [signal.SIGKILL],
            "segv": [signal.SIGSEGV],
            "stop": [signal.SIGSTOP, signal.SIGCONT],
        }
        pid = draw.choice(pids)
        for number in numbers[how]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            time.sleep(draw.random() * 0.1)
        if how != "stop":
            was_killed.add(pid)
    return _judge(whom, producer, readers, was_killed, from_loader)


def _judge(
    whom: str, producer: Party, readers: list[Party], was_killed: set[int], from_loader: bool
) -> Counter[str]:
    whole = [list(range(NB_BATCHES))] * 2
    if not from_loader:
        both = expected(NB_BATCHES, 2)
        whole = [both[:NB_BATCHES], both[NB_BATCHES:]]
    what: Counter[str] = Counter()
    for reader in readers:
        if reader.pid in was_killed:
            reader.process.join(20)
            what["killed consumer"] += 1
            continue
        epochs, error, longest_s = reader.result()
        what[error or "whole"] += 1
        assert longest_s < within_s(), (whom, longest_s)
        if not error:
            assert epochs == whole, whom
        else:
            assert whom != "consumers" or reader in readers[:2], (whom, error)
            for epoch, want in zip(epochs, whole, strict=False):
                assert epoch == want[: len(epoch)]
    if whom == "consumers":
        assert producer.result() == 1
    return what


def test_parties_that_are_hit_harm_no_other(party: Callable[..., Party]) -> None:
    for seed in (1, 3):
        hit_some(party, seed, nb_hits=3)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_parties_for_long(party: Callable[..., Party]) -> None:
    what: Counter[str] = Counter()
    for seed in rounds(200):
        what += hit_some(party, seed, nb_hits=4)
    print(what)


# ---- ranks


def train(rank: int, seed: int, nb_hits: int) -> Any:
    """Equal steps over a stream; one rank may end in the middle."""
    from tests.chaos.hits import hitting, workers
    from tests.process.test_equal_steps import Shards

    draw = random.Random(seed)
    victim, at = draw.randrange(2), draw.randrange(2, 40)
    how = draw.choice(["worker", "worker", "rank"])
    steps = []
    progress = Progress()
    with hitting(workers, seed * 2 + rank, nb_hits if how == "worker" else 0):
        try:
            with SwiftLoader(
                Shards, {"sizes": [12, 9, 8, 13], "rank": rank}, nb_consumer=2,
                worker_per_consumer=2, equal_steps=True, timeout=20, validate=False,
                max_worker_restarts=1000,
            ) as loader:  # fmt: skip
                for _ in range(3):
                    for batch in loader:
                        steps.append(batch.tolist())
                        if len(steps) == 1:
                            progress = Progress()
                        progress()
                        if how == "rank" and rank == victim and len(steps) == at:
                            os.kill(os.getpid(), signal.SIGKILL)
        except LoaderError as error:
            progress()
            return how, steps, type(error).__name__, progress.longest_s
    return how, steps, "", progress.longest_s


def ranks(seed: int, nb_hits: int) -> Counter[str]:
    """Of two ranks, one or its workers are hit."""
    told = run_ranks(2, train, seed, nb_hits, timeout_s=60)
    for one in told:
        assert not isinstance(one, Exception), one
    there = [one for one in told if one is not None]
    assert there
    for *_, longest_s in there:
        assert longest_s < within_s(), there
    if len(there) == 2 and not any(error for _, _, error, _ in there):
        assert len(there[0][1]) == len(there[1][1])
    if len(there) == 1 and there[0][0] == "rank":
        assert there[0][2] in ("EqualStepsError", ""), there
    return Counter(error or "whole" for _, _, error, _ in there)


def test_ranks_whose_workers_are_hit_keep_in_step() -> None:
    ranks(seed=1, nb_hits=3)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ranks_for_long() -> None:
    what: Counter[str] = Counter()
    for seed in rounds(200):
        what += ranks(seed, nb_hits=4)
    print(what)
