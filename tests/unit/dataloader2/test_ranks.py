"""Two and three real gloo ranks: equal steps, equal seeds, errors everywhere, nobody hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch.distributed as dist
from torch.utils.data import IterDataPipe

from swift_loader.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    PeerFailedError,
    PrefetchTimeoutError,
    SequentialReadingService,
)
from swift_loader.dataloader2.iter import FullSync
from swift_loader.dataloader2.iter import IterableWrapper as Wrap
from swift_loader.errors import WorkerDiedError
from swift_loader.worker.launch import Zygote
from tests.ranks import run_ranks
from tests.unit.dataloader2.pipes import Numbers, with_draws, with_worker_info

pytestmark = pytest.mark.timeout(100)


class Misbehaves(IterDataPipe[int]):
    """On one rank, does something after a few items."""

    def __init__(self, rank: int, what: str, after: int = 3) -> None:
        self.rank, self.what, self.after = rank, what, after

    def __iter__(self) -> Iterator[int]:
        for i in range(10):
            if i == self.after and dist.get_rank() == self.rank:
                if self.what == "raise":
                    raise KeyError("bad item")
                if self.what == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.what == "hang":
                    time.sleep(1000)
                if self.what == "end":
                    return
            yield i


def pipe(n: int) -> Any:
    return Wrap(range(n)).shuffle().sharding_filter().map(str)


def epochs(rank: int, n: int) -> Any:
    loader: DataLoader2[str] = DataLoader2(pipe(n), reading_service=DistributedReadingService(20))
    result = []
    for epoch in range(3):
        if epoch == 0:
            loader.seed(rank + 5)  # rank 0's is taken
        result.append(list(loader))
    loader.shutdown()
    return result, [t.name for t in threading.enumerate() if "read ahead" in t.name]


@pytest.mark.parametrize(("nb_rank", "n"), [(2, 7), (3, 11), (2, 1), (2, 0)])
def test_ranks_yield_equally_many_disjoint_items_of_one_order(nb_rank: int, n: int) -> None:
    results = run_ranks(nb_rank, epochs, n)
    assert all(threads == [] for _, threads in results)
    shards = [epochs for epochs, _ in results]
    orders = []
    for epoch in range(3):
        of_epoch = [shard[epoch] for shard in shards]
        assert {len(items) for items in of_epoch} == {n // nb_rank}
        dealt = [item for step in zip(*of_epoch, strict=True) for item in step]
        assert len(set(dealt)) == len(dealt)
        orders.append(tuple(dealt))
    if n > 5:
        assert len(set(orders)) == 3


def given_up(rank: int) -> Any:
    loader: DataLoader2[str] = DataLoader2(pipe(40), reading_service=DistributedReadingService(20))
    loader.seed(1)
    firsts = []
    for _ in range(3):
        for i, item in enumerate(loader):
            if i == 4:
                firsts.append(item)
                break
    whole = list(loader)
    del loader
    return firsts, len(whole)


def test_ranks_that_leave_an_epoch_after_the_same_step_go_on_together() -> None:
    results = run_ranks(2, given_up)
    assert [(len(firsts), nb_whole) for firsts, nb_whole in results] == [(3, 20), (3, 20)]


def states(rank: int, nb_taken: int) -> Any:
    loader: DataLoader2[str] = DataLoader2(pipe(21), reading_service=DistributedReadingService(20))
    loader.seed(1)
    list(loader)
    iterator = iter(loader)
    for _ in range(nb_taken):
        next(iterator)
    state = loader.state_dict()
    left, following = list(iterator), list(loader)
    loader.shutdown()
    restored = DataLoader2[str].from_state(state, DistributedReadingService(20))
    again = list(restored), list(restored)
    restored.shutdown()
    return (left, following) == again, len(left)


@pytest.mark.parametrize("nb_taken", [0, 6])
def test_a_state_goes_on_with_what_was_left_on_each_rank(nb_taken: int) -> None:
    assert run_ranks(2, states, nb_taken) == [(True, 10 - nb_taken)] * 2


def misbehaved(rank: int, what: str, timeout: float) -> Any:
    loader: DataLoader2[int] = DataLoader2(
        Sharded(Misbehaves(1, what)), reading_service=DistributedReadingService(timeout)
    )
    items = []
    for item in loader:
        items.append(item)
    return items


class Sharded(IterDataPipe[int]):
    """Says that it shards, and passes everything on."""

    def __init__(self, source: IterDataPipe[int]) -> None:
        self.source = source

    def apply_sharding(self, nb: int, index: int) -> None:
        pass

    def __iter__(self) -> Iterator[int]:
        yield from self.source


def test_a_rank_that_raises_raises_everywhere() -> None:
    other, own = run_ranks(2, misbehaved, "raise", 20)
    assert isinstance(own, KeyError)
    assert "bad item" in str(own)
    assert isinstance(other, PeerFailedError)
    assert "rank 1: KeyError" in str(other)


def test_a_rank_that_is_killed_is_an_error_on_the_others() -> None:
    other, own = run_ranks(2, misbehaved, "die", 20)
    assert own is None
    assert isinstance(other, PeerFailedError)
    assert "may have died" in str(other)


def test_a_rank_that_hangs_is_an_error_within_the_timeout() -> None:
    other, own = run_ranks(2, misbehaved, "hang", 2)
    assert isinstance(other, PrefetchTimeoutError)
    assert isinstance(own, PrefetchTimeoutError)
    assert other.timeout == 2


def test_a_rank_that_ends_early_ends_all() -> None:
    assert run_ranks(2, misbehaved, "end", 20) == [[0, 1, 2], [0, 1, 2]]


def out_of_step(rank: int) -> Any:
    synced = Wrap(range(10)).fullsync(timeout=5)
    iterator = iter(synced)
    for _ in range(2 + rank):
        next(iterator)
    return list(synced) if rank == 0 else next(iterator)


def test_ranks_that_are_out_of_step_are_told() -> None:
    results = run_ranks(2, out_of_step)
    assert any(isinstance(r, PeerFailedError) and "same step" in str(r) for r in results)
    assert all(isinstance(r, (PeerFailedError, PrefetchTimeoutError)) for r in results)


def many_services(rank: int) -> Any:
    service = SequentialReadingService(DistributedReadingService(20))
    pipe_with_sync = Wrap(range(9)).sharding_filter().fullsync(20)
    loader: DataLoader2[int] = DataLoader2(pipe_with_sync, reading_service=service)
    iterator = iter(loader)
    iterator.limit(2)
    first = list(iterator)
    iterator.resume()
    second = list(iterator)
    iterator.limit(None)
    iterator.resume()
    nb_sync = 0
    end: Any = loader.datapipe
    while isinstance(end, FullSync):
        nb_sync, end = nb_sync + 1, end.source_datapipe
    return first, second, list(iterator), nb_sync


def test_a_graph_that_ends_in_fullsync_gets_no_second_and_can_be_limited() -> None:
    assert run_ranks(2, many_services) == [([0, 2], [4, 6], [], 1), ([1, 3], [5, 7], [], 1)]


def warned(rank: int) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader: DataLoader2[int] = DataLoader2(
            Wrap(range(3)), reading_service=DistributedReadingService(20)
        )
        items = list(loader)
    loader.shutdown()
    return items, [str(w.message) for w in caught]


def test_without_a_sharding_pipe_there_is_a_warning() -> None:
    for items, messages in run_ranks(2, warned):
        assert items == [0, 1, 2]
        assert any("every rank yields all items" in message for message in messages)


def test_one_rank_needs_no_agreement() -> None:
    [(result, threads)] = run_ranks(1, epochs, 5)
    assert [sorted(items) for items in result] == [list("01234")] * 3
    assert threads == []


def test_without_a_process_group_it_says_so() -> None:
    for make in (
        lambda: DataLoader2(Wrap([1]), reading_service=DistributedReadingService()),
        lambda: Wrap([1]).fullsync(),
    ):
        with pytest.raises(RuntimeError, match="init_process_group"):
            list(make())


def ranks_and_workers(rank: int, n: int, nb_worker: int) -> Any:
    service = SequentialReadingService(
        DistributedReadingService(30), MultiProcessingReadingService(nb_worker)
    )
    loader: DataLoader2[Any] = DataLoader2(
        Numbers(n).shuffle().sharding_filter().map(with_worker_info).map(with_draws),
        reading_service=service,
    )
    loader.seed(rank)
    epochs = [list(loader), list(loader)]
    iterator = iter(loader)
    taken = [next(iterator) for _ in range(3)]
    state = loader.state_dict()
    left = list(iterator)
    loader.shutdown()
    restored = DataLoader2[Any].from_state(
        state,
        SequentialReadingService(
            DistributedReadingService(30), MultiProcessingReadingService(nb_worker)
        ),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = list(restored)
    restored.shutdown()
    Zygote.end_idle()
    return [*epochs, taken + left], again == left, len(psutil.Process().children(recursive=True))


def test_ranks_times_workers_shards_are_disjoint_and_complete() -> None:
    nb_rank, nb_worker, n = 2, 2, 43  # shards of 11, 11, 11 and 10
    results = run_ranks(nb_rank, ranks_and_workers, n, nb_worker)
    assert all(same for _, same, _ in results)
    assert all(nb_process == 0 for _, _, nb_process in results)
    orders, draws = [], []
    for epoch in range(3):
        shards = [epochs[epoch] for epochs, _, _ in results]
        assert [len(shard) for shard in shards] == [21, 21]
        seen = [item for shard in shards for (item, _, _), *_ in shard]
        assert len(set(seen)) == 42
        for shard in shards:
            for i, ((_, worker, nb_all), *_) in enumerate(shard):
                assert (worker, nb_all) == (i % nb_worker, nb_worker)
        draws += [draw for shard in shards for _, *row in shard for draw in row]
        orders.append(tuple(seen))
    assert len(set(orders)) == 3
    assert len(set(draws)) == len(draws)


def fails_in_a_worker(rank: int) -> Any:
    errors: list[Any] = []
    for what in ("raise", "kill"):
        service = SequentialReadingService(
            DistributedReadingService(30), MultiProcessingReadingService(2, max_worker_restarts=0)
        )
        numbers = Numbers(40, 20 if rank == 1 else -1, what).sharding_filter()
        loader: DataLoader2[Any] = DataLoader2(numbers, reading_service=service)
        try:
            list(loader)
        except Exception as error:  # noqa: BLE001 it is what the test looks at
            errors.append(error)
    return errors


def test_what_happens_in_a_worker_of_one_rank_raises_everywhere() -> None:
    others, own = run_ranks(2, fails_in_a_worker)
    assert [type(error) for error in own] == [LookupError, WorkerDiedError]
    assert [type(error) for error in others] == [PeerFailedError, PeerFailedError]
    assert "rank 1: LookupError" in str(others[0])
    assert "rank 1: WorkerDiedError" in str(others[1])
