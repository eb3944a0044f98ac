"""`DataLoader2` in one process: the protocol with its service, epochs and seeds, states, limits."""

from __future__ import annotations

import gc
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterDataPipe

from swift_loader.dataloader2 import (
    CheckpointableReadingServiceInterface,
    DataLoader2,
    InProcessReadingService,
    PauseIteration,
    ReadingServiceInterface,
    SequentialReadingService,
    WorkerInfo,
)
from swift_loader.dataloader2.adapter import Adapter, CacheTimeout, Shuffle
from swift_loader.dataloader2.iter import IterableWrapper as Wrap
from swift_loader.dataloader2.map import SequenceWrapper
from swift_loader.errors import StateError


class Told(CheckpointableReadingServiceInterface):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.state = b"fresh"

    def initialize(self, datapipe: Any) -> Any:
        self.calls.append("initialize")
        return datapipe

    def initialize_iteration(self, seed_generator: Any, iter_reset_fn: Any = None) -> Any:
        self.calls.append("begin")

    def finalize_iteration(self) -> None:
        self.calls.append("end")

    def finalize(self) -> None:
        self.calls.append("finalize")

    def checkpoint(self) -> bytes:
        return b"saved"

    def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        self.calls.append("restore")
        self.state = serialized_state
        return datapipe


class Plain(ReadingServiceInterface):
    """The least that a service must have."""

    def initialize(self, datapipe: Any) -> Any:
        return datapipe


class Fails(IterDataPipe[int]):
    def __init__(self, error: BaseException, after: int = 2) -> None:
        self.error, self.after = error, after

    def __iter__(self) -> Iterator[int]:
        yield from range(self.after)
        raise self.error


class PausesOnce(IterDataPipe[int]):
    """A user's pipe that stops the loader without ending the epoch."""

    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> PausesOnce:
        return self

    def __next__(self) -> int:
        self.number += 1
        if self.number == 2:
            raise PauseIteration
        if self.number > 4:
            raise StopIteration
        return self.number


def shuffled(n: int = 20) -> Any:
    return Wrap(range(n)).shuffle().sharding_filter().map(str)


def calls(loader: DataLoader2[Any]) -> list[str]:
    service: Any = loader.reading_service
    return list(service.calls)


class TestProtocol:
    def test_the_service_hears_of_everything_once_and_in_order(self) -> None:
        loader = DataLoader2(Wrap(range(2)), reading_service=Told())
        assert calls(loader) == []
        assert list(loader) == [0, 1]
        assert calls(loader) == ["initialize", "begin", "end"]
        list(loader)
        assert calls(loader)[3:] == ["begin", "end"]
        loader.shutdown()
        loader.shutdown()
        assert calls(loader)[5:] == ["end", "finalize"]

    def test_a_given_up_epoch_ends_before_the_next_begins(self) -> None:
        loader = DataLoader2(Wrap(range(3)), reading_service=Told())
        old = iter(loader)
        next(old)
        assert list(loader) == [0, 1, 2]
        assert calls(loader) == ["initialize", "begin", "end", "begin", "end"]
        with pytest.raises(RuntimeError, match="iterator has been invalidated"):
            next(old)

    def test_asking_twice_without_taking_goes_on_with_the_same_epoch(self) -> None:
        loader = DataLoader2(Wrap(range(3)), reading_service=Told())
        iter(loader)
        assert list(iter(loader)) == [0, 1, 2]
        assert calls(loader).count("begin") == 1

    def test_pipe_and_service_are_copied(self) -> None:
        pipe, service = Wrap([[1]], deepcopy=False), Told()
        loader = DataLoader2(pipe, reading_service=service)
        next(iter(loader)).append(2)
        assert list(pipe) == [[1]]
        assert service.calls == []

    def test_the_least_service_will_do(self) -> None:
        assert list(DataLoader2(Wrap(range(3)), reading_service=Plain())) == [0, 1, 2]

    def test_with_and_del_shut_down(self) -> None:
        with DataLoader2(Wrap(range(2)), reading_service=Told()) as loader:
            service: Any = loader.reading_service
        assert service.calls == ["end", "finalize"]
        loader = DataLoader2(Wrap(range(2)), reading_service=Told())
        service = loader.reading_service
        del loader
        gc.collect()
        assert service.calls == ["end", "finalize"]

    def test_nothing_goes_after_shutdown(self) -> None:
        loader = DataLoader2(Wrap(range(2)))
        iterator = iter(loader)
        next(iterator)
        loader.shutdown()
        with pytest.raises(RuntimeError, match="shut down"):
            next(iterator)
        with pytest.raises(RuntimeError, match="shut down"):
            iter(loader)

    @pytest.mark.parametrize("error", [ValueError("bad"), OSError("gone")])
    def test_an_error_of_the_graph_arrives_and_shuts_the_loader_down(self, error: Any) -> None:
        loader = DataLoader2(Fails(error), reading_service=Told())
        iterator = iter(loader)
        assert [next(iterator), next(iterator)] == [0, 1]
        with pytest.raises(type(error), match=str(error.args[0])):
            next(iterator)
        assert calls(loader)[-2:] == ["end", "finalize"]
        with pytest.raises(RuntimeError, match="shut down"):
            iter(loader)

    def test_attributes_of_the_graphs_iterator_show_through(self) -> None:
        iterator = iter(DataLoader2(PausesOnce()))
        assert iterator.number == 0
        with pytest.raises(AttributeError):
            _ = iterator.nothing_of_this_name

    def test_without_a_graph_it_says_so(self) -> None:
        with pytest.raises(RuntimeError, match="load_state_dict"):
            iter(DataLoader2(None))

    def test_map_style_pipes_are_iterated_in_order(self) -> None:
        assert list(DataLoader2(SequenceWrapper([3, 1, 2]).map(str))) == ["3", "1", "2"]

    def test_length_and_truth(self) -> None:
        assert len(DataLoader2(Wrap(range(7)).batch(2))) == 4
        with pytest.raises(TypeError):
            len(DataLoader2(Wrap(range(7)).filter(bool)))
        with pytest.raises(TypeError):
            len(DataLoader2(Wrap(range(7)), reading_service=Plain()))
        assert DataLoader2(Wrap([]))

    def test_an_empty_pipe_has_epochs_too(self) -> None:
        loader = DataLoader2(Wrap([]), reading_service=Told())
        assert (list(loader), list(loader)) == ([], [])

    def test_500_tiny_epochs(self) -> None:
        loader = DataLoader2(Wrap(range(2)).shuffle().prefetch(1))
        assert all(sorted(loader) == [0, 1] for _ in range(500))


class TestSeeds:
    def test_the_same_seed_gives_the_same_epochs(self) -> None:
        first, second = DataLoader2(shuffled()), DataLoader2(shuffled())
        for loader in (first, second):
            loader.seed(7)
        assert [list(first) for _ in range(3)] == [list(second) for _ in range(3)]

    def test_epochs_of_one_seed_differ(self) -> None:
        loader = DataLoader2(shuffled())
        loader.seed(7)
        epochs = [tuple(loader) for _ in range(5)]
        assert len(set(epochs)) == 5
        assert {tuple(sorted(epoch)) for epoch in epochs} == {tuple(sorted(map(str, range(20))))}

    def test_seeding_again_repeats(self) -> None:
        loader = DataLoader2(shuffled())
        orders = []
        for _ in range(2):
            loader.seed(7)
            orders.append([list(loader), list(loader)])
        assert orders[0] == orders[1]

    def test_unseeded_epochs_differ_and_follow_torchs_generator(self) -> None:
        runs = []
        for _ in range(2):
            torch.manual_seed(3)
            loader = DataLoader2(
                Wrap(range(20)).shuffle(), reading_service=InProcessReadingService()
            )
            runs.append([tuple(loader) for _ in range(3)])
            assert len(set(runs[-1])) == 3
        assert runs[0] == runs[1]
        for seed in (3, 4, 3):
            torch.manual_seed(seed)
            assert ([tuple(loader) for _ in range(3)] == runs[0]) == (seed == 3)

    @pytest.mark.parametrize("draws", [0, 3, 3000])
    def test_a_script_that_seeds_and_draws_before_each_epoch_repeats_it(self, draws: int) -> None:
        loader = DataLoader2(Wrap(range(20)).shuffle(), reading_service=InProcessReadingService())
        orders = []
        for seed in (3, 3, 4, 3):
            torch.manual_seed(seed)
            torch.rand(draws)  # the weights of a model
            orders.append(tuple(loader))
            torch.rand(5)
        torch.manual_seed(9)
        torch.rand(draws)
        state = torch.get_rng_state()
        orders.append(tuple(loader))
        torch.set_rng_state(state)
        orders.append(tuple(loader))
        assert [orders.index(order) for order in orders] == [0, 0, 2, 0, 4, 4]

    def test_a_seed_waits_for_the_next_epoch(self) -> None:
        loader, plain = DataLoader2(shuffled()), DataLoader2(shuffled())
        for each in (loader, plain):
            each.seed(1)
        iterator = iter(loader)
        items = [next(iterator)]
        loader.seed(2)
        assert items + list(iterator) == list(plain)
        plain.seed(2)
        assert list(loader) == list(plain)

    def test_bounds(self) -> None:
        loader = DataLoader2(shuffled())
        with pytest.raises(ValueError, match="uint64"):
            loader.seed(2**64)
        loader.seed(-1)
        order = list(loader)
        loader.seed(2**64 - 1)
        assert list(loader) == order


class TestStates:
    def loader(self) -> DataLoader2[str]:
        loader: DataLoader2[str] = DataLoader2(
            shuffled(), reading_service=InProcessReadingService()
        )
        loader.seed(5)
        return loader

    @pytest.mark.parametrize("nb_taken", [0, 1, 7, 19, 20])
    @pytest.mark.parametrize("epoch", [0, 2])
    def test_a_restored_loader_yields_exactly_what_was_left(
        self, nb_taken: int, epoch: int
    ) -> None:
        loader = self.loader()
        for _ in range(epoch):
            list(loader)
        iterator = iter(loader)
        for _ in range(nb_taken):
            next(iterator)
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        left, next_epoch = list(iterator), list(loader)
        restored = DataLoader2[str].from_state(state, InProcessReadingService())
        assert list(restored) == left
        assert list(restored) == next_epoch
        into: DataLoader2[str] = DataLoader2(None, reading_service=InProcessReadingService())
        into.load_state_dict(state)
        assert [list(into), list(into)] == [left, next_epoch]

    def test_after_the_last_item_or_between_epochs_the_next_epoch_follows(self) -> None:
        loader = self.loader()
        list(loader)
        state = loader.state_dict()
        restored = DataLoader2[str].from_state(state, InProcessReadingService())
        assert list(restored) == list(loader)

    def test_before_the_first_epoch_it_is_that_one(self) -> None:
        loader = self.loader()
        restored = DataLoader2[str].from_state(loader.state_dict(), InProcessReadingService())
        assert list(restored) == list(loader)

    def test_states_of_restored_loaders_hold_the_whole_position(self) -> None:
        loader = self.loader()
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        restored = DataLoader2[str].from_state(loader.state_dict(), InProcessReadingService())
        second = iter(restored)
        assert next(second) == next(iterator)
        again = DataLoader2[str].from_state(restored.state_dict(), InProcessReadingService())
        assert list(again) == list(iterator)

    def test_right_after_loading_the_state_is_what_was_loaded(self) -> None:
        state = self.loader().state_dict()
        assert DataLoader2[str].from_state(state, None).state_dict() is state

    def test_the_beginning_of_the_epoch_can_be_had(self) -> None:
        loader = self.loader()
        list(loader)
        iterator = iter(loader)
        items = [next(iterator), next(iterator)]
        restored = DataLoader2[str].from_state(loader.state_dict(), InProcessReadingService())
        restored._restore_checkpoint_beginning_of_epoch()
        whole = items + list(iterator)
        assert list(restored) == whole
        assert list(restored) == list(loader)
        loader._restore_checkpoint_beginning_of_epoch()

    @pytest.mark.parametrize(("seed", "resumes"), [(5, True), (6, False)])
    def test_a_script_that_seeds_its_epochs_resumes_the_one_it_names(
        self, seed: int, resumes: bool
    ) -> None:
        loader = self.loader()
        iterator = iter(loader)
        next(iterator)
        restored = DataLoader2[str].from_state(loader.state_dict(), None)
        restored.seed(seed)
        fresh = DataLoader2[str](shuffled())
        fresh.seed(seed)
        assert list(restored) == (list(iterator) if resumes else list(fresh))

    def test_a_shuffle_buffer_is_passed_over_not_saved(self) -> None:
        loader: DataLoader2[int] = DataLoader2(Wrap(range(50)).shuffle(buffer_size=10).prefetch(3))
        iterator = iter(loader)
        taken = [next(iterator) for _ in range(23)]
        restored = DataLoader2[int].from_state(loader.state_dict(), None)
        assert sorted(taken + list(restored)) == list(range(50))

    def test_adapters_are_applied_to_a_loaded_graph(self) -> None:
        state = DataLoader2(Wrap(range(9)).shuffle()).state_dict()
        loader: DataLoader2[int] = DataLoader2(None, datapipe_adapter_fn=Shuffle(False))
        loader.load_state_dict(state)
        assert list(loader) == list(range(9))

    def test_an_iterated_loader_takes_no_state(self) -> None:
        loader = self.loader()
        state = loader.state_dict()
        list(loader)
        with pytest.raises(RuntimeError, match="already been created"):
            loader.load_state_dict(state)

    def test_a_graph_that_became_shorter_is_refused(self) -> None:
        loader: DataLoader2[int] = DataLoader2(Wrap(range(9)))
        list(zip(loader, range(8), strict=False))
        state = loader.state_dict()
        state["serialized_datapipe"] = DataLoader2(Wrap(range(3))).state_dict()[
            "serialized_datapipe"
        ]
        with pytest.raises(StateError, match="yields 3"):
            iter(DataLoader2[int].from_state(state, None))

    def test_the_keys_that_scripts_know(self) -> None:
        state = DataLoader2(Wrap([1]), reading_service=Told()).state_dict()
        assert state["reading_service_state"] == b"saved"
        assert len(state["randomness_state"]) == 4
        assert isinstance(state["serialized_datapipe"], bytes)
        del state["epoch_state"], state["randomness_state"]
        restored = DataLoader2[int].from_state(state, Told())
        assert list(restored) == [1]

    def test_a_checkpointable_service_is_restored(self) -> None:
        loader = DataLoader2(Wrap(range(4)), reading_service=Told())
        next(iter(loader))
        restored = DataLoader2[int].from_state(loader.state_dict(), Told())
        assert list(restored) == [1, 2, 3]
        assert calls(restored)[0] == "restore"
        with pytest.raises(TypeError, match="non-checkpointable"):
            iter(DataLoader2[int].from_state(loader.state_dict(), Plain()))

    def test_a_service_that_restores_the_position_is_left_to_it(self) -> None:
        class Knows(Told):
            restores_position = True

        loader = DataLoader2(Wrap(range(4)), reading_service=Told())
        next(iter(loader))
        assert list(DataLoader2[int].from_state(loader.state_dict(), Knows())) == [0, 1, 2, 3]

    def test_lambdas_travel_in_states(self) -> None:
        loader: DataLoader2[int] = DataLoader2(Wrap(range(3)).map(lambda x: x + 1))
        assert list(DataLoader2[int].from_state(loader.state_dict(), None)) == [1, 2, 3]


class TestLimits:
    @pytest.mark.parametrize(
        "service", [None, InProcessReadingService(), InProcessReadingService(2)]
    )
    def test_a_limit_pauses_and_resume_goes_on(self, service: Any) -> None:
        iterator = iter(DataLoader2(Wrap(range(7)).prefetch(2), reading_service=service))
        iterator.limit(3)
        assert list(iterator) == [0, 1, 2]
        assert list(iterator) == []
        iterator.resume()
        assert list(iterator) == [3, 4, 5]
        iterator.limit(None)
        iterator.resume()
        assert list(iterator) == [6]

    def test_a_limit_counts_from_when_it_is_set(self) -> None:
        iterator = iter(DataLoader2(Wrap(range(7))))
        next(iterator)
        iterator.limit(2)
        assert list(iterator) == [1, 2]

    def test_a_new_epoch_is_not_paused(self) -> None:
        loader: DataLoader2[int] = DataLoader2(Wrap(range(4)))
        iterator = iter(loader)
        iterator.limit(1)
        assert list(iterator) == [0]
        assert list(loader) == [0, 1, 2, 3]

    def test_a_pipe_may_pause_the_loader(self) -> None:
        loader: DataLoader2[int] = DataLoader2(PausesOnce(), reading_service=Told())
        iterator = iter(loader)
        assert list(iterator) == [1]
        assert calls(loader)[-1] == "begin"
        assert list(iterator) == [3, 4]
        assert calls(loader)[-1] == "end"

    def test_services_that_cant_are_warned_of(self) -> None:
        iterator = iter(DataLoader2(Wrap(range(3)), reading_service=Plain()))
        with pytest.warns(UserWarning, match="doesn't support `limit`"):
            iterator.limit(5)
        with pytest.warns(UserWarning, match="doesn't support `resume`"):
            iterator.resume()
        with pytest.warns(UserWarning, match="not paused"):
            iter(DataLoader2(Wrap(range(3)))).resume()


class TestAdapters:
    def test_they_are_applied_in_order(self) -> None:
        adapters = [lambda pipe: pipe.map(lambda x: x + 1), lambda pipe: pipe.map(lambda x: x * 10)]
        assert list(DataLoader2(Wrap([1, 2]), datapipe_adapter_fn=adapters)) == [20, 30]

    def test_shuffle_on_off_and_as_it_is(self) -> None:
        pipe = Wrap(range(50)).shuffle()
        assert list(DataLoader2(pipe, Shuffle(False))) == list(range(50))
        assert list(DataLoader2(pipe, Shuffle(None))) != list(range(50))
        with pytest.warns(UserWarning, match="does not contain a `Shuffler`"):
            loader: DataLoader2[int] = DataLoader2(Wrap(range(50)), Shuffle(True))
        assert list(loader) != list(range(50))

    def test_cache_timeouts_reach_the_pipes_that_have_one(self) -> None:
        class Waits(IterDataPipe[int]):
            timeout = 300.0

            def set_timeout(self, timeout: float) -> None:
                self.timeout = timeout

            def __iter__(self) -> Iterator[int]:
                yield int(self.timeout)

        assert list(DataLoader2(Waits().map(abs), CacheTimeout(7))) == [7]
        with pytest.raises(ValueError, match="timeout"):
            CacheTimeout(None)

    def test_an_adapter_must_say_what_it_does(self) -> None:
        with pytest.raises(TypeError):
            Adapter()  # type: ignore[abstract]


class TestServices:
    def test_in_process_init_and_reset_functions(self) -> None:
        seen: list[Any] = []

        def init(pipe: Any, info: WorkerInfo) -> Any:
            assert info == WorkerInfo(1, 0)
            return pipe.map(lambda x: x + 1)

        def reset(pipe: Any, info: WorkerInfo, generator: Any) -> Any:
            return pipe.map(lambda x: x * 2)

        for prefetch_cnt in (0, 2):
            service = InProcessReadingService(prefetch_cnt, init, reset)
            loader: DataLoader2[int] = DataLoader2(Wrap([1, 2]), reading_service=service)
            assert [list(loader), list(loader)] == [[4, 6], [8, 12]]
        assert seen == []

    def test_a_sequence_begins_in_order_and_ends_in_reverse(self) -> None:
        log: list[str] = []

        class Named(Told):
            def __init__(self, name: str) -> None:
                super().__init__()
                self.name = name

            def initialize(self, datapipe: Any) -> Any:
                log.append(f"{self.name} initialize")
                return datapipe.map(lambda x, name=self.name: x + name)

            def initialize_iteration(self, seed_generator: Any, iter_reset_fn: Any = None) -> Any:
                log.append(f"{self.name} begin")

            def finalize_iteration(self) -> None:
                log.append(f"{self.name} end")

            def finalize(self) -> None:
                log.append(f"{self.name} finalize")

        service = SequentialReadingService(Named("a"), Named("b"))
        assert list(service.initialize(Wrap(["x"]))) == ["xab"]
        service.initialize_iteration(None)  # type: ignore[arg-type]
        service.finalize_iteration()
        service.finalize()
        order = ["initialize a b", "begin a b", "end b a", "finalize b a"]
        assert log == [f"{who} {what.split()[0]}" for what in order for who in what.split()[1:]]

    def test_a_sequence_saves_and_restores_those_that_have_a_state(self) -> None:
        service = SequentialReadingService(Told(), Plain())
        with pytest.warns(UserWarning, match="Plain has no state to save"):
            state = service.checkpoint()
        with pytest.warns(UserWarning, match="Plain has no state to restore"):
            service.restore(Wrap([]), state)
        first: Any = service.reading_services[0]
        assert (first.calls, first.state) == (["restore"], b"saved")

    def test_iter_reset_functions_are_handed_on(self) -> None:
        class Gives(Plain):
            def initialize_iteration(self, seed_generator: Any, iter_reset_fn: Any = None) -> Any:
                return lambda pipe: pipe.map(lambda x: -x)

        service = SequentialReadingService(Gives(), InProcessReadingService())
        assert list(DataLoader2(Wrap([1, 2]), reading_service=service)) == [-1, -2]


def test_the_tutorial_in_one_process(tmp_path: Path) -> None:
    names = []
    for i in range(2):
        path = tmp_path / f"train{i}.csv"
        path.write_text("".join(f"{i},{j}\n" for j in range(10)))
        names.append(str(path))
    pipe = Wrap(names).open_files(encoding="utf-8").parse_csv()
    pipe = pipe.shuffle().sharding_filter()
    pipe = pipe.map(lambda row: [int(field) for field in row]).batch(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader: DataLoader2[Any] = DataLoader2(pipe)
        for epoch in range(3):
            loader.seed(epoch)
            batches = list(loader)
            assert [len(batch) for batch in batches] == [8, 8, 4]
            rows = sorted(tuple(row) for batch in batches for row in batch)
            assert rows == [(i, j) for i in range(2) for j in range(10)]
        loader.shutdown()


def test_a_seed_that_waits_when_the_state_is_taken_waits_on() -> None:
    loader: DataLoader2[str] = DataLoader2(shuffled())
    loader.seed(1)
    iterator = iter(loader)
    next(iterator)
    loader.seed(2)
    restored = DataLoader2[str].from_state(loader.state_dict(), None)
    assert [list(restored), list(restored)] == [list(iterator), list(loader)]
    restored._restore_checkpoint_beginning_of_epoch()
    fresh: DataLoader2[str] = DataLoader2(shuffled())
    fresh.seed(2)
    assert list(restored) == list(fresh)
