"""Graphs in real worker processes: order, seeds, errors, ends. Nothing may be left behind."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from swift_loader.dataloader2 import (
    DataLoader2,
    MultiProcessingReadingService,
    PrototypeMultiProcessingReadingService,
    WorkerInfo,
)
from swift_loader.dataloader2.iter import IterableWrapper as Wrap
from swift_loader.errors import ShippingError, WorkerDiedError, WorkerError
from tests.unit.dataloader2 import pipes
from tests.unit.dataloader2.pipes import Numbers

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(60)]
MP = SHARDING_PRIORITIES.MULTIPROCESSING


def load(pipe: Any, nb_worker: int = 2, **options: Any) -> DataLoader2[Any]:
    if nb_worker == 0:
        return DataLoader2(pipe)
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(nb_worker, **options))


def processes() -> list[psutil.Process]:
    """Pipe workers (and a dispatching process): the children of the process that forks them."""
    return [child for zygote in psutil.Process().children() for child in zygote.children()]


class TestOrder:
    @pytest.mark.parametrize(
        ("nb_worker", "n"), [(1, 0), (1, 7), (2, 0), (2, 1), (2, 100), (3, 2), (3, 7)]
    )
    def test_items_come_in_the_order_of_one_process(self, nb_worker: int, n: int) -> None:
        with load(Numbers(n).sharding_filter().map(str), nb_worker) as loader:
            for _ in range(2):
                assert list(loader) == list(map(str, range(n)))

    @pytest.mark.parametrize(("worker_cnt", "main_cnt"), [(0, 0), (0, 1), (3, 50)])
    def test_whatever_is_made_ahead(self, worker_cnt: int, main_cnt: int) -> None:
        options = {"worker_prefetch_cnt": worker_cnt, "main_prefetch_cnt": main_cnt}
        with load(Numbers(50).sharding_filter(), 2, **options) as loader:
            assert list(loader) == list(range(50))

    def test_batches_of_one_process_by_any_number_of_workers(self) -> None:
        pipe = Numbers(50).shuffle().shard_by_batch(8).map(abs).batch(8)
        epochs = []
        for nb_worker in (0, 1, 3):
            with load(pipe, nb_worker) as loader:
                loader.seed(3)
                epochs.append([[list(batch) for batch in loader] for _ in range(2)])
        assert epochs[0] == epochs[1] == epochs[2]

    def test_an_ended_worker_is_passed_over(self) -> None:
        pipe = Numbers(12).sharding_filter().filter(pipes.odd)
        with load(pipe, 2) as loader:
            assert list(loader) == [1, 3, 5, 7, 9, 11]
        uneven = Numbers(6).sharding_filter().flatmap(pipes.ten_if_first)
        with load(uneven, 2) as loader:
            items = list(loader)
        assert items == [0, 1, 0, 3, 0, 5, 0, 0, 0, 0, 0, 0, 0, 2, 4]

    def test_slow_items_are_not_held_back(self) -> None:
        with load(Numbers(40).sharding_filter().map(pipes.slow), 2) as loader:
            assert list(loader) == list(range(40))

    def test_without_sharding_every_worker_yields_all_with_a_warning(self) -> None:
        with load(Numbers(3), 2) as loader:
            with pytest.warns(UserWarning, match="every worker yields all items"):
                iterator = iter(loader)
            assert list(iterator) == [0, 0, 1, 1, 2, 2]

    def test_lengths(self) -> None:
        sharded = Wrap(range(23)).sharding_filter().batch(4)
        for pipe in (sharded, sharded.prefetch(2), Wrap(range(23)).batch(4).sharding_filter()):
            with load(pipe, 3) as loader:
                assert len(loader) == len(list(loader)) == len(loader)
        with pytest.raises(TypeError):
            len(load(Numbers(3).sharding_filter()))


class TestSeeds:
    def test_workers_cut_the_order_that_one_process_has(self) -> None:
        pipe = Numbers(40).shuffle().sharding_filter()
        orders = []
        for nb_worker in (0, 2, 3):
            with load(pipe, nb_worker) as loader:
                loader.seed(5)
                orders.append([list(loader) for _ in range(3)])
        assert orders[0] == orders[1] == orders[2]
        assert len({tuple(order) for order in orders[0]}) == 3

    def test_after_sharding_draws_differ_by_worker_epoch_and_seed(self) -> None:
        with load(Numbers(4).sharding_filter().map(pipes.with_draws), 2) as loader:
            rows = []
            for seed in (1, 2, 1):
                loader.seed(seed)
                rows += [list(loader), list(loader)]
        assert rows[:2] == rows[4:]
        draws = [draw for epoch in rows[:4] for _, *row in epoch for draw in row]
        assert len(set(draws)) == len(draws) == 48

    def test_this_processs_generators_are_left_alone(self) -> None:
        states = random.getstate(), torch.get_rng_state()
        with load(Numbers(9).shuffle().sharding_filter().map(pipes.with_draws)) as loader:
            loader.seed(1)  # without a seed, each epoch takes a number from torch's
            list(loader)
        assert random.getstate() == states[0]
        assert torch.equal(torch.get_rng_state(), states[1])

    def test_the_users_functions_see_their_worker(self) -> None:
        def init(pipe: Any, info: WorkerInfo) -> Any:
            return pipe.map(lambda x: (info.worker_id, info.num_workers, x))

        def reset(pipe: Any, info: WorkerInfo, generator: Any) -> Any:
            seed = generator.generate_seed()
            return pipe.map(lambda x: (*x, seed))

        options = {"worker_init_fn": init, "worker_reset_fn": reset}
        with load(Numbers(4).sharding_filter(), 2, **options) as loader:
            loader.seed(1)
            first, second = list(loader), list(loader)
        assert [row[:3] for row in first] == [(0, 2, 0), (1, 2, 1), (0, 2, 2), (1, 2, 3)]
        assert len({row[3] for row in first}) == 2
        assert [len(row) for row in second] == [5] * 4

    def test_torch_knows_the_worker(self) -> None:
        with load(Numbers(4).sharding_filter().map(pipes.with_worker_info), 2) as loader:
            assert list(loader) == [(0, 0, 2), (1, 1, 2), (2, 0, 2), (3, 1, 2)]


class TestDispatching:
    def test_what_comes_before_runs_once_and_is_dealt_by_turns(self) -> None:
        pipe = Numbers(30).map(pipes.with_pid).sharding_round_robin_dispatch(MP)
        with load(pipe.map(pipes.with_pid), 3) as loader:
            rows = list(loader)
        assert [item for _, (_, item) in rows] == list(range(30))
        assert len({pid for _, (pid, _) in rows}) == 1
        workers = [worker for worker, _ in rows]
        assert len(set(workers)) == 3
        assert workers == workers[:3] * 10

    @pytest.mark.parametrize("nb_worker", [1, 2])
    def test_the_order_and_its_seeds_are_those_of_one_process(self, nb_worker: int) -> None:
        pipe = Numbers(30).shuffle().sharding_round_robin_dispatch(MP).map(str)
        orders = []
        for n in (0, nb_worker):
            with load(pipe, n) as loader:
                loader.seed(2)
                orders.append([list(loader), list(loader)])
        assert orders[0] == orders[1]
        assert orders[0][0] != orders[0][1]

    def test_the_dispatcher_may_come_last_and_beside_a_sharded_branch(self) -> None:
        with load(Numbers(7).sharding_round_robin_dispatch(MP), 2) as loader:
            assert list(loader) == list(range(7))
        dispatched = Numbers(8).sharding_round_robin_dispatch(MP)
        other = Wrap("abcdefgh").sharding_filter()
        with load(dispatched.zip(other), 2) as loader:
            assert list(loader) == list(enumerate("abcdefgh"))

    def test_two_dispatchers_share_one_process(self) -> None:
        first = Numbers(6).map(pipes.with_pid).sharding_round_robin_dispatch(MP)
        second = Numbers(6).map(pipes.with_pid).sharding_round_robin_dispatch(MP)
        with load(first.zip(second).map(pipes.with_pid), 2) as loader:
            rows = list(loader)
        assert [(a[1], b[1]) for _, (a, b) in rows] == [(i, i) for i in range(6)]
        assert len({pid for _, (a, b) in rows for pid in (a[0], b[0])}) == 1

    def test_epochs_can_be_given_up(self) -> None:
        pipe = Numbers(200).shuffle().sharding_round_robin_dispatch(MP).map(abs)
        with load(pipe, 2) as loader:
            for nb_taken in (1, 30, 0, 150):
                list(zip(range(nb_taken), loader, strict=False))
            assert sorted(loader) == list(range(200))

    def test_tensors_pass_through(self) -> None:
        pipe = Numbers(20).map(pipes.tensors).sharding_round_robin_dispatch(MP)
        with load(pipe.batch(2).sharding_filter(), 2) as loader:
            batches = list(loader)
        seen = sorted(int(row["x"][999]) for batch in batches for row in batch)
        assert seen == list(range(20))

    @pytest.mark.parametrize("what", ["raise", "kill"])
    def test_what_happens_in_the_dispatching_process_arrives(self, what: str) -> None:
        pipe = Numbers(30, 9, what).sharding_round_robin_dispatch(MP).map(abs)
        loader = load(pipe, 2)
        if what == "raise":
            items = []
            with pytest.raises(LookupError, match="no such item") as caught:
                for item in loader:
                    items.append(item)
            assert items == list(range(9)), "what was dealt before the error comes before it"
            assert "the dispatching process" in str(caught.value.__cause__)
        else:
            with pytest.raises(WorkerDiedError, match=r"dispatching process .* SIGKILL"):
                list(loader)

    def test_a_worker_that_dies_behind_it_is_an_error(self) -> None:
        pipe = Numbers(10**6).sharding_round_robin_dispatch(MP).map(pipes.with_pid)
        loader = load(pipe, 2)
        iterator = iter(loader)
        pid, _ = next(iterator)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="can't be made again"):
            list(iterator)


class TestEnds:
    def test_epochs_can_be_given_up_and_begun_at_once(self) -> None:
        with load(Numbers(300).shuffle().sharding_filter(), 2) as loader:
            for nb_taken in (1, 40, 0, 299):
                list(zip(range(nb_taken), loader, strict=False))
            old = iter(loader)
            next(old)
            assert sorted(loader) == list(range(300))
            with pytest.raises(RuntimeError, match="invalidated"):
                next(old)

    def test_many_tiny_epochs_by_the_same_processes(self) -> None:
        with load(Numbers(3).sharding_filter().map(pipes.with_pid), 2) as loader:
            pids = set()
            for _ in range(100):
                rows = list(loader)
                assert [item for _, item in rows] == [0, 1, 2]
                pids |= {pid for pid, _ in rows}
            assert len(pids) == 2

    def test_a_dropped_loader_ends_its_workers(self) -> None:
        loader = load(Numbers(10**6).sharding_filter(), 2)
        next(iter(loader))
        assert len(processes()) == 2
        del loader
        gc.collect()
        assert psutil.wait_procs(processes(), timeout=5)[1] == []

    def test_a_limit_pauses_and_resume_goes_on(self) -> None:
        with load(Numbers(9).sharding_filter(), 2) as loader:
            iterator = iter(loader)
            iterator.limit(4)
            assert (list(iterator), list(iterator)) == ([0, 1, 2, 3], [])
            iterator.resume()
            iterator.limit(None)
            assert list(iterator) == [4, 5, 6, 7, 8]

    def test_workers_that_wait_take_no_time(self) -> None:
        def used_s() -> list[float]:
            return [sum(process.cpu_times()[:2]) for process in processes()]

        with load(Numbers(10**6).sharding_filter(), 2) as loader:
            next(iter(loader))
            before: list[float] = []
            while before != used_s():  # until they have made what they may make
                before = used_s()
                time.sleep(0.3)
            time.sleep(0.7)
            assert used_s() == before


class TestErrors:
    def test_an_error_comes_with_its_type_its_place_and_its_traceback(self) -> None:
        loader = load(Numbers(30, 9, "raise").sharding_filter().map(abs), 2)
        iterator = iter(loader)
        items = list(itertools.islice(iterator, 8))
        assert items == list(range(8))
        with pytest.raises(LookupError, match="no such item") as caught:
            list(iterator)
        cause = caught.value.__cause__
        assert isinstance(cause, WorkerError)
        assert "worker process" in str(cause)
        assert "pipes.py" in str(cause)
        assert "Numbers" in str(cause)
        with pytest.raises(RuntimeError, match="shut down"):
            iter(loader)

    @pytest.mark.parametrize(
        ("how", "name"), [("sys.exit", "SystemExit"), ("cancel", "CancelledError")]
    )
    def test_what_would_end_a_worker_is_an_error_here(self, how: str, name: str) -> None:
        with pytest.raises(WorkerError, match=name):
            list(load(Numbers(30, 9, how).sharding_filter(), 2))

    def test_an_item_that_cant_be_sent_is_an_error_in_its_place(self) -> None:
        iterator = iter(load(Numbers(30).sharding_filter().map(pipes.unsendable), 2))
        assert list(itertools.islice(iterator, 7)) == list(range(7))
        with pytest.raises(Exception, match="generator"):
            next(iterator)

    def test_a_graph_that_cant_be_unpacked_there(self) -> None:
        with pytest.raises(ImportError, match="not here") as caught:
            list(load(pipes.NotHere().sharding_filter(), 2))
        assert "unpacking the graph" in str(caught.value.__cause__)

    def test_a_graph_that_cant_leave(self) -> None:
        pipe = Wrap([1]).sharding_filter()
        pipe.lock = __import__("threading").Lock()
        with pytest.raises((ShippingError, TypeError)):
            list(load(pipe, 2))

    @pytest.mark.parametrize("when", ["init", "reset"])
    def test_users_functions_that_raise(self, when: str) -> None:
        def fail(*args: Any) -> Any:
            raise KeyError(when)

        with pytest.raises(KeyError, match=when):
            list(load(Numbers(9).sharding_filter(), 2, **{f"worker_{when}_fn": fail}))

    def test_bad_options_are_refused(self) -> None:
        for options in (
            {"multiprocessing_context": "thread"},
            {"num_workers": -1},
            {"worker_prefetch_cnt": -1},
            {"main_prefetch_cnt": -1},
        ):
            with pytest.raises(ValueError, match=next(iter(options))):
                MultiProcessingReadingService(**{"num_workers": 1, **options})  # type: ignore[arg-type]

    def test_no_workers_runs_here_with_a_warning(self) -> None:
        with pytest.warns(UserWarning, match="num_workers=0"):
            service = MultiProcessingReadingService(0)
        with DataLoader2(Numbers(4).map(pipes.with_pid), reading_service=service) as loader:
            assert list(loader) == [(os.getpid(), i) for i in range(4)]
            iterator = iter(loader)
            iterator.limit(1)
            assert len(list(iterator)) == 1
            assert len(list(loader)) == 4

    def test_the_former_name(self) -> None:
        with pytest.warns(FutureWarning, match="is now"):
            service = PrototypeMultiProcessingReadingService(num_workers=1)
        with DataLoader2(Numbers(2).sharding_filter(), reading_service=service) as loader:
            assert list(loader) == [0, 1]


class TestDeaths:
    @pytest.mark.parametrize("what", ["kill", "exit"])
    def test_a_worker_that_dies_once_costs_no_item(self, what: str, tmp_path: Path) -> None:
        pipe = Numbers(60, 23, what, once=tmp_path / "done").shuffle(buffer_size=5)
        with load(pipe.sharding_filter().map(pipes.with_draws), 2) as loader:
            loader.seed(1)
            with pytest.warns(RuntimeWarning, match="takes its place"):
                rows = list(loader)
            loader.seed(1)
            assert rows == list(loader)
        assert sorted(row[0] for row in rows) == list(range(60))

    def test_idle_workers_that_are_killed_cost_no_item(self) -> None:
        with load(Numbers(500).sharding_filter(), 2) as loader:
            iterator = iter(loader)
            items = [next(iterator), next(iterator), next(iterator)]
            for process in processes():
                process.kill()
            with pytest.warns(RuntimeWarning, match="SIGKILL"):
                items += list(iterator)
            assert items == list(range(500))
            for process in processes():
                process.kill()
            with pytest.warns(RuntimeWarning, match="SIGKILL"):
                assert list(loader) == list(range(500))

    def test_an_idle_worker_killed_twice_while_another_is_slow_costs_no_item(self) -> None:
        with load(Numbers(60).sharding_filter().map(pipes.slow_at_31), 2) as loader:
            iterator = iter(loader)
            next(iterator)
            _, slow_pid = next(iterator)  # item 1, and so 31, is its
            killed: set[int] = set()

            def kill_twice() -> None:
                time.sleep(1.5)  # the idle one has all its credit used by then
                while len(killed) < 2:
                    for process in processes():
                        if process.pid != slow_pid and process.pid not in killed:
                            process.kill()
                            killed.add(process.pid)

            with ThreadPoolExecutor(1) as pool:
                done = pool.submit(kill_twice)
                with pytest.warns(RuntimeWarning, match="SIGKILL"):
                    rest = [item for item, _ in iterator]
                done.result()
            assert rest == list(range(2, 60))

    def test_an_item_that_kills_each_worker_is_an_error_that_says_so(self) -> None:
        with (
            pytest.warns(RuntimeWarning, match="takes its place"),
            pytest.raises(WorkerDiedError, match="The same item has ended 3 workers"),
        ):
            list(load(Numbers(60, 23, "kill").sharding_filter(), 2))

    def test_restarts_are_bounded(self, tmp_path: Path) -> None:
        pipe = Numbers(60, 23, "kill", once=tmp_path / "done").sharding_filter()
        with pytest.raises(WorkerDiedError, match="max_worker_restarts=0"):
            list(load(pipe, 2, max_worker_restarts=0))


class TestStates:
    @pytest.mark.parametrize("nb_taken", [0, 9, 60])
    def test_a_restored_loader_yields_what_was_left(self, nb_taken: int) -> None:
        pipe = Numbers(60).shuffle().sharding_filter().map(pipes.with_draws)
        with load(pipe, 2) as loader:
            loader.seed(3)
            list(loader)
            iterator = iter(loader)
            for _ in range(nb_taken):
                next(iterator)
            state = loader.state_dict()
            left, following = list(iterator), list(loader)
        service = MultiProcessingReadingService(2)
        with DataLoader2[Any].from_state(state, service) as restored:
            assert [list(restored), list(restored)] == [left, following]


class TestItems:
    def test_tensors_and_arrays_are_views_that_can_be_kept(self) -> None:
        with load(Numbers(300).sharding_filter().map(pipes.tensors), 2) as loader:
            kept = list(loader)
            again = list(loader)
        del again
        for i, row in enumerate(kept):
            assert row["item"] == i
            assert torch.equal(row["x"], torch.full((1000,), float(i)))
            assert row["y"].tolist() == [i] * 10
            assert row["empty"].numel() == 0

    def test_large_items(self) -> None:
        with load(Numbers(40).sharding_filter().map(pipes.big), 2) as loader:
            for i, item in enumerate(loader):
                assert item.shape == (3 << 20,)
                assert int(item[0]) == int(item[-1]) == i % 100

    def test_lambdas_and_local_pipes_travel(self) -> None:
        class Doubled(type(Numbers(1))):  # type: ignore[misc]
            def __iter__(self) -> Any:
                for i in range(self.n):
                    yield 2 * i

        offset = 100
        with load(Doubled(6).sharding_filter().map(lambda x: x + offset), 2) as loader:
            assert list(loader) == [100, 102, 104, 106, 108, 110]

    def test_what_cant_be_copied_stays_here_with_all_behind_it(self) -> None:
        pipe = pipes.StaysHome(Numbers(6).sharding_filter().map(pipes.with_pid)).batch(2)
        with load(pipe, 2) as loader:
            rows = [row for batch in loader for row in batch]
        assert {here for here, _ in rows} == {os.getpid()}
        assert os.getpid() not in {there for _, (there, _) in rows}
        assert [item for _, (_, item) in rows] == list(range(6))

    def test_threads_behind_the_workers_end_with_the_epoch(self) -> None:
        pipe = pipes.StaysHome(Numbers(500).sharding_filter()).prefetch(3)
        loader = load(pipe, 2)
        for nb_taken in (3, 0, 100):
            list(zip(range(nb_taken), loader, strict=False))
        assert [item for _, item in loader] == list(range(500))
        next(iter(loader))
        loader.shutdown()


def test_the_tutorial(tmp_path: Path) -> None:
    names = []
    for i in range(2):
        path = tmp_path / f"train{i}.csv"
        path.write_text("".join(f"{i},{j}\n" for j in range(20)))
        names.append(str(path))
    fn: Callable[[list[str]], list[int]] = lambda row: [int(field) for field in row]  # noqa: E731
    pipe = Wrap(names).open_files(encoding="utf-8").parse_csv()
    pipe = pipe.shuffle().sharding_filter()
    pipe = pipe.map(fn).batch(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = load(pipe, 4)
        orders = []
        for epoch in (0, 1, 0):
            loader.seed(epoch)
            rows = [tuple(row) for batch in loader for row in batch]
            assert sorted(rows) == [(i, j) for i in range(2) for j in range(20)]
            orders.append(rows)
        loader.shutdown()
    assert orders[0] == orders[2] != orders[1]
