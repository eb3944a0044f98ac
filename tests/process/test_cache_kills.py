"""Ranks that share a cache are killed, and so are their workers and the store: batches stay right.

Ranks come back, as a launcher would start them again, and go on from the first epoch while the
others are elsewhere.
"""

from __future__ import annotations

import multiprocessing.forkserver
import os
import pickle
import random
import secrets
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.multiprocessing

from swift_loader import SwiftLoader
from swift_loader.cache import Cache
from tests.process.scripts import assert_gone, assert_nothing_new_in_shm, family
from tests.process.test_cache import _MARK, _N, _SAMPLE_BYTES, OPTIONS, Counted, plain, stores

pytestmark = pytest.mark.usefixtures("nothing_left")

_EPOCHS = 3
_BATCH_WITHIN_S = 120.0
_HALF = _N * _SAMPLE_BYTES // 2


@pytest.fixture(scope="module", autouse=True)
def forkserver() -> None:
    """Ranks are forked from a process that has imported torch; it stays."""
    multiprocessing.forkserver.set_forkserver_preload(["torch", "swift_loader.loader.loader"])
    multiprocessing.forkserver.ensure_running()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cache", [{"memory": 1_000_000}, {"memory": _HALF}, {"disk": "disk"}])
def test_killed_ranks_workers_and_stores_cost_no_sample(
    cache: dict[str, Any], tmp_path: Path
) -> None:
    mark = secrets.token_hex(8)
    if "disk" in cache:
        cache = {"memory": _HALF, "disk": tmp_path / "disk"}
    _kills(Cache(key=mark, **cache), tmp_path, mark, nb_rank=3, rounds=100)


def _kills(cache: Cache, folder: Path, mark: str, nb_rank: int, rounds: int) -> None:
    choose = random.Random(f"{cache.memory} {cache.disk is None}")
    (folder / "want").write_bytes(pickle.dumps([_right(rank, nb_rank) for rank in range(nb_rank)]))
    context = torch.multiprocessing.get_context("forkserver")
    before = set(os.listdir("/dev/shm"))
    seen: set[psutil.Process] = set()
    killed = dict.fromkeys(("rank", "worker", "store"), 0)
    ranks: dict[int, tuple[Any, Connection]] = {}

    def begin(rank: int) -> None:
        ours, its = context.Pipe()
        arguments = (rank, nb_rank, folder, cache, mark, its)
        process = context.Process(target=_rank, args=arguments, daemon=True)
        process.start()
        its.close()
        ranks[rank] = process, ours

    for rank in range(nb_rank):
        begin(rank)
    try:
        while sum(killed.values()) < rounds:
            for _ in range(choose.randrange(1, 40)):
                _one_more_batch(ranks)
            time.sleep(choose.random() * 0.01)
            victim = choose.choice(("rank", "worker", "store"))
            rank = choose.randrange(nb_rank)
            process, pipe = ranks[rank]
            whole = family(process.pid)
            found = stores(mark)
            seen.update(whole, found)
            if victim == "rank":
                process.kill()
                process.join()
                pipe.close()
                begin(rank)
                killed[victim] += 1
                continue
            workers = [each for each in whole[1:] if _parent_of(each) not in (process.pid, 1)]
            for each in (workers if victim == "worker" else found)[:1]:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
                    killed[victim] += 1
        for _, pipe in ranks.values():
            pipe.send("enough")
        for process, pipe in ranks.values():
            while pipe.poll(_BATCH_WITHIN_S):
                try:
                    assert pipe.recv() is None
                except EOFError:
                    break
            process.join(_BATCH_WITHIN_S)
            assert process.exitcode == 0
    finally:
        for process, pipe in ranks.values():
            process.kill()
            process.join()
            pipe.close()
    print(killed)
    assert_gone([*seen, *stores(mark)])
    assert_nothing_new_in_shm(before)


def _one_more_batch(ranks: dict[int, tuple[Any, Connection]]) -> None:
    """Wait for a batch of any rank that is right."""
    ready = wait([pipe for _, pipe in ranks.values()], _BATCH_WITHIN_S)
    assert ready, "no rank gets a batch"
    for pipe in ready:
        assert isinstance(pipe, Connection)
        failed = pipe.recv()
        assert failed is None, failed


def _parent_of(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return 1


def _right(rank: int, nb_rank: int) -> list[list[Any]]:
    """The batches of a rank, made without a cache."""
    with SwiftLoader(Counted, {"path": os.devnull}, nb_consumer=nb_rank, **OPTIONS) as loader:
        loader.start(rank)
        return [[plain(batch) for batch in loader] for _ in range(_EPOCHS)]


def _rank(rank: int, nb_rank: int, folder: Path, cache: Cache, mark: str, pipe: Connection) -> None:
    """Goes through the same epochs again and again; None for each batch that is right."""
    torch.set_num_threads(1)
    os.environ[_MARK] = mark  # a store has it from whoever starts it
    want = pickle.loads((folder / "want").read_bytes())[rank]
    options = {**OPTIONS, "worker_per_consumer": 2, "nb_consumer": nb_rank, "cache": cache}
    options |= {"max_worker_restarts": 10**6, "max_deaths_per_batch": 10**6}
    try:
        with SwiftLoader(Counted, {"path": os.devnull, "slow_s": 0.002}, **options) as loader:
            loader.start(rank)
            while not pipe.poll():
                loader.set_epoch(0)
                for right_ones in want:
                    for batch, right in zip(loader, right_ones, strict=True):
                        assert plain(batch) == right
                        pipe.send(None)
                figures = loader.stats().cache
                assert figures is not None
                assert figures.memory_used <= figures.memory_size
            pipe.recv()
    except BaseException:  # noqa: BLE001 - the test says it
        pipe.send(traceback.format_exc())
