"""What a data set is told later: the epoch, and `call_dataset`, in every worker."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset, random_split

from swift_loader import ConfigError, Mixture, SwiftLoader
from swift_loader.errors import StateError
from tests import datasets

pytestmark = pytest.mark.usefixtures("nothing_left")


class Told:
    """Samples say what the data set was told when they were made."""

    def __init__(self, n: int = 16) -> None:
        self.n = n
        self.epoch = -1
        self.sizes: list[Any] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[int, int, int, int]:
        last = self.sizes[-1] if self.sizes else 0
        return index, self.epoch, len(self.sizes), last if isinstance(last, int) else sum(last)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def resize(self, size: Any) -> None:
        self.sizes.append(size)


class Collate:
    def __init__(self) -> None:
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __call__(self, samples: list[Any]) -> tuple[torch.Tensor, int]:
        plain = isinstance(samples[0][0], int)
        return torch.tensor(samples) if plain else samples, self.epoch


def told(batch: Any) -> set[tuple[int, ...]]:
    """(epoch, number of calls, last size) of all samples of a batch."""
    return set(zip(*(column.tolist() for column in batch[1:]), strict=True))


def test_every_worker_is_told_the_epoch_before_its_first_batch() -> None:
    with SwiftLoader(
        Told, batch_size=2, num_workers=2, collate_fn=Collate(), data_queue_size=30
    ) as loader:
        for epoch in (0, 1, 5):
            loader.set_epoch(epoch)
            for rows, said in loader:
                assert said == epoch
                assert rows[:, 1].tolist() == [epoch, epoch]


class Streamed(torch.utils.data.IterableDataset[tuple[int, int]]):
    """Items say what the stream was told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return ((item, self.epoch) for item in range(4))


class Stamp(Streamed):
    """A transform that stamps the epoch on a sample."""

    def __call__(self, sample: Any) -> Any:
        return sample, self.epoch


class Transformed(datasets.Numbers):
    """With a `transform` of its own, as torchvision's data sets have one."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.transform = Stamp()

    def __getitem__(self, index: int) -> Any:
        return self.transform(super().__getitem__(index))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_wrappers_of_torch_hold_is_told_too(workers: int) -> None:
    inner = Told()
    mixed = ConcatDataset(
        [Subset(Subset(inner, range(8)), range(4)), random_split(inner, [4, 12])[0]]
    )
    with SwiftLoader(mixed, batch_size=2, worker_per_consumer=workers) as loader:
        for epoch in range(2):
            assert all(told(batch) == {(epoch, 0, 0)} for batch in loader)
    with SwiftLoader(
        Subset(Transformed(8), range(4)), batch_size=4, worker_per_consumer=workers
    ) as loader:
        for epoch in range(2):
            assert [batch[1].tolist() for batch in loader] == [[epoch] * 4]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_its_transform_and_its_collate_are_told(workers: int) -> None:
    chain = torch.utils.data.ChainDataset([Streamed(), Streamed()])
    with SwiftLoader(
        chain, batch_size=4, worker_per_consumer=workers, transform=Stamp(), collate_fn=Collate()
    ) as loader:
        for epoch in (0, 1, 5):
            loader.set_epoch(epoch)
            for rows, said in loader:
                assert said == epoch
                assert [(by_stream, by_transform) for (_, by_stream), by_transform in rows] == [
                    (epoch, epoch)
                ] * 4


class Wrapper(torch.utils.data.Dataset[Any]):
    """As people write one: it has the data set, and nothing else of it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


class Speaker:
    """Says the epoch that it knows: as a data set, as a collate function, as a transform."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.epoch

    def says(self, _: Any) -> int:
        return self.epoch


class Transforms(datasets.Numbers):
    """With a transform that is no more than a function."""

    def __init__(self, transform: Any) -> None:
        super().__init__(4)
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return self.transform(super().__getitem__(index))


def collated_by(speaker: Speaker, samples: Any, more: Speaker | None = None) -> int:
    return (more or speaker).says(samples)


HOLDERS: dict[str, Any] = {
    "a method that collates": lambda one: (datasets.Numbers(4), one.says),
    "an argument": lambda one: (datasets.Numbers(4), partial(collated_by, one)),
    "a keyword": lambda one: (datasets.Numbers(4), partial(collated_by, Speaker(), more=one)),
    "a partial of a method": lambda one: (datasets.Numbers(4), partial(one.says)),
    "wrappers": lambda one: (Wrapper(Wrapper(one)), None),
    "stacked": lambda one: (StackDataset(one, Wrapper(one)), None),
    "stacked by name": lambda one: (StackDataset(a=one), None),
    "a method that transforms": lambda one: (Transforms(one.says), None),
    "a partial that transforms": lambda one: (Wrapper(Transforms(partial(collated_by, one))), None),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", HOLDERS)
def test_what_a_wrapper_a_method_or_a_partial_holds_is_told_as_a_script_would_tell_it(
    name: str, workers: int
) -> None:
    one = Speaker()
    dataset, collate = HOLDERS[name](one)
    want = []
    for epoch in range(2):
        one.set_epoch(epoch)
        want.append(repr(list(DataLoader(dataset, batch_size=2, collate_fn=collate))))
    dataset, collate = HOLDERS[name](Speaker())
    with SwiftLoader(dataset, batch_size=2, num_workers=workers, collate_fn=collate) as loader:
        assert [repr(list(loader)) for _ in range(2)] == want


def test_samples_that_a_wrapper_hides_are_not_kept_if_they_differ_from_epoch_to_epoch() -> None:
    for dataset in (Subset(Told(), range(4)), Transformed(4), Wrapper(Told())):
        with pytest.raises(ConfigError, match="set_epoch"):
            SwiftLoader(dataset, batch_size=2, cache="1MB").start()


def test_a_call_is_made_from_the_next_epoch_on_in_every_worker() -> None:
    with SwiftLoader(Told(), batch_size=2, num_workers=2) as loader:
        loader.call_dataset("resize", 7)  # before anything is started
        loader.start()
        assert all(told(batch) == {(0, 1, 7)} for batch in loader)
        loader.call_dataset("resize", (3, 5))  # the batches of epoch 1 are there already
        iterator = iter(loader)
        assert told(next(iterator)) == {(1, 2, 8)}
        loader.call_dataset("resize", torch.tensor([1, 1]).tolist())
        assert all(told(batch) == {(1, 2, 8)} for batch in iterator)  # not in mid-epoch
        for worker in loader.stats().workers:
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)  # those that are started anew are told all of it
        assert all(told(batch) == {(2, 3, 2)} for batch in loader)


def test_a_call_reaches_the_data_sets_inside_a_wrapper_or_a_mixture() -> None:
    def part() -> Subset[Any]:
        return Subset(Told(), range(4))

    makers: list[Callable[[], tuple[Any, ...]]] = [
        lambda: (part(),),
        lambda: (ConcatDataset([part(), Told()]),),
        lambda: (ConcatDataset, {"datasets": [part(), part()]}),
        lambda: (Mixture({"a": (Told, {}, 1.0), "b": (part(), 1.0)}),),
        lambda: (Mixture({"a": (part, {}, 1.0)}),),  # what a function makes is not known before
    ]
    for workers in (0, 2):
        for maker in makers:
            options: dict[str, Any] = {"batch_size": 2, "num_workers": workers, "validate": False}
            with SwiftLoader(*maker(), **options) as loader:
                loader.call_dataset("resize", 7)
                assert {one for batch in loader for one in told(batch)} == {(0, 1, 7)}
                loader.call_dataset("resize", 3)
                assert {one for batch in loader for one in told(batch)} == {(1, 2, 3)}
    for maker in makers[:-1]:
        with SwiftLoader(*maker(), batch_size=2, validate=False) as loader:
            with pytest.raises(ConfigError, match="no such method"):
                loader.call_dataset("missing")


@pytest.mark.parametrize(
    "maker", [lambda: (Told,), lambda: (Told(),), lambda: (Mixture({"a": (Told(), 1.0)}),)]
)
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"num_workers": 0},
        {"num_workers": 2, "start_method": "fork"},
        {"num_workers": 2, "start_method": "thread"},
    ],
)
def test_a_state_of_before_the_calls_takes_them_back(
    maker: Callable[[], tuple[Any, ...]], options: dict[str, Any]
) -> None:
    with SwiftLoader(*maker(), batch_size=2, validate=False, **options) as loader:
        loader.start()
        loader.call_dataset("resize", 5)
        state = loader.state_dict()
        for count, size in ((2, 7), (3, 8)):
            loader.call_dataset("resize", size)
            assert {one[1:] for batch in loader for one in told(batch)} == {(count, size)}
        loader.load_state_dict(state)
        assert {one[1:] for batch in loader for one in told(batch)} == {(1, 5)}
        loader.call_dataset("resize", 9)
        assert {one[1:] for batch in loader for one in told(batch)} == {(2, 9)}


def test_workers_that_are_threads_build_again_and_touch_nothing_of_the_process() -> None:
    names = ("is_initialized", "get_rank", "get_world_size")
    before = [type(os.environ), *(getattr(torch.distributed, name) for name in names)]
    options: dict[str, Any] = {"num_workers": 2, "start_method": "thread", "nb_consumer": 2}
    with SwiftLoader(Told(), batch_size=2, validate=False, **options) as loader:
        loader.start(0)
        state = loader.state_dict()
        loader.call_dataset("resize", 7)
        list(loader)
        loader.load_state_dict(state)
        loader.call_dataset("resize", 9)
        assert {one for batch in loader for one in told(batch)} == {(0, 1, 9)}
    assert [type(os.environ), *(getattr(torch.distributed, name) for name in names)] == before


def test_calls_are_in_the_state() -> None:
    with SwiftLoader(Told(), batch_size=2) as loader:
        loader.call_dataset("resize", 7)
        iterator = iter(loader)
        next(iterator)
        loader.call_dataset("resize", 9)
        state = json.loads(json.dumps(loader.state_dict()))
    with SwiftLoader(Told(), batch_size=2) as loader:
        loader.load_state_dict(state)
        rest = list(loader)
        assert [told(batch) for batch in rest] == [{(0, 1, 7)}] * 7
        assert [told(batch) for batch in loader] == [{(1, 2, 9)}] * 8
        again = loader.state_dict()
        assert again["calls"]["all"] == state["calls"]["all"]
    for broken in ({"all": ["[1, 2]"], "before": 0}, {"all": [], "before": 1}, 3, {}):
        with SwiftLoader(Told(), batch_size=2) as loader, pytest.raises(StateError, match="calls"):
            loader.load_state_dict({**state, "calls": broken})
            iter(loader)


def test_a_state_of_the_epoch_in_which_the_first_call_was_asked_for_goes_on_without_it() -> None:
    with SwiftLoader(Told(), batch_size=4, num_workers=0) as loader:
        iterator = iter(loader)
        next(iterator)
        loader.call_dataset("resize", 7)
        state = loader.state_dict()
        assert list(loader.batch_sampler) == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
            [8, 9, 10, 11],
            [*range(12, 16)],
        ]
    with SwiftLoader(Told(), batch_size=4, num_workers=0) as loader:
        loader.load_state_dict(state)
        assert [told(batch) for batch in loader] == [{(0, 0, 0)}] * 3
        assert [told(batch) for batch in loader] == [{(1, 1, 7)}] * 4


def test_what_can_not_be_called_is_refused() -> None:
    with SwiftLoader(Told, batch_size=2) as loader:
        with pytest.raises(ConfigError, match="no such method"):
            loader.call_dataset("sizes")
        with pytest.raises(ConfigError, match="plain data"):
            loader.call_dataset("resize", object())
        loader.call_dataset("resize")
        with pytest.raises(TypeError, match="missing 1 required"):
            next(iter(loader))


class Handing(datasets.Numbers):
    """Has the methods of another object."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)


def test_a_method_that_a_built_data_set_lacks_is_refused_at_once() -> None:
    for make in (Told, lambda: Subset(Told(), range(4)), lambda: list(range(4))):
        # Nobody but the loader has it, and the loader keeps none.
        with SwiftLoader(make(), batch_size=2, validate=False) as loader:
            with pytest.raises(ConfigError, match="no such method"):
                loader.call_dataset("missing")
            with pytest.raises(ConfigError, match="no such method"):
                loader.call_dataset("n")
    one = Told()
    one.grow = partial(Told.resize, one)  # type: ignore[attr-defined]
    handing = Handing(4)
    handing.inner = Told()
    loaders = [SwiftLoader(it, batch_size=2, validate=False) for it in (one, handing)]
    del one, handing
    for loader, method in zip(loaders, ("grow", "resize"), strict=True):
        with loader:
            loader.call_dataset(method, 3)


def test_without_prefetched_epochs_nothing_is_made_before_its_epoch(tmp_path: Any) -> None:
    with SwiftLoader(
        Noting, {"path": str(tmp_path / "made")}, batch_size=2, prefetch_epochs=0, validate=False
    ) as loader:
        loader.start()
        for epoch in range(2):
            iterator = iter(loader)
            assert len(list(iterator)) == 2
            assert (tmp_path / "made").read_text() == "0123" * (epoch + 1)


class Noting:
    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        with open(self.path, "a") as file:
            file.write(str(index))
        return index


def test_a_sampler_of_a_data_set_that_is_told_goes_on_where_it_was() -> None:
    def build() -> SwiftLoader:
        sampler = torch.utils.data.RandomSampler(range(16), generator=torch.Generator())
        return SwiftLoader(Told(), batch_size=2, sampler=sampler)

    with build() as loader:
        loader.call_dataset("resize", 7)
        iterator = iter(loader)
        first = [next(iterator) for _ in range(3)]
        state = loader.state_dict()
        rest = list(iterator)
        assert {row for batch in first + rest for row in told(batch)} == {(0, 1, 7)}
    with build() as loader:
        loader.load_state_dict(state)
        again = list(loader)
        assert [batch[0].tolist() for batch in again] == [batch[0].tolist() for batch in rest]
        assert {row for batch in again for row in told(batch)} == {(0, 1, 7)}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_epoch_that_the_script_told_its_data_set_is_not_passed_over_in_silence(
    num_workers: int,
) -> None:
    dataset = Told(4)
    with SwiftLoader(dataset, batch_size=4, num_workers=num_workers) as loader:
        dataset.set_epoch(5)
        with pytest.warns(RuntimeWarning, match=r"epoch 5.*loader\.set_epoch\(5\)") as warned:
            first = list(loader)
        assert [one.filename for one in warned] == [__file__]
        assert told(first[0]) == {(0, 0, 0)}
        dataset.set_epoch(6)
        loader.set_epoch(6)
        assert told(next(iter(loader))) == {(6, 0, 0)}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_epochs_that_the_script_and_the_loader_count_alike_need_no_warning(
    num_workers: int,
) -> None:
    for tells in (True, False):
        dataset = Told(4)
        with SwiftLoader(dataset, batch_size=4, num_workers=num_workers) as loader:
            for epoch in range(3):
                if tells:
                    dataset.set_epoch(epoch)
                assert told(next(iter(loader))) == {(epoch, 0, 0)}


class SharedEpoch(torch.utils.data.IterableDataset[int]):
    """Tells its epoch to other processes, in shared memory, and each item says it."""

    def __init__(self) -> None:
        self._epoch = torch.tensor(0).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self._epoch += epoch - self._epoch

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        for _ in range(2 + 30 * info.id):  # the first worker is done long before the second
            yield int(self._epoch)


@pytest.mark.parametrize("start_method", ["fresh", "fork"])
def test_workers_that_are_ahead_leave_the_epoch_of_others_alone(start_method: str) -> None:
    stream = SharedEpoch()
    with SwiftLoader(
        stream, batch_size=1, num_workers=2, start_method=start_method, data_queue_size=40
    ) as loader:
        for epoch in range(4):
            assert {said.item() for said in loader} == {epoch}
    assert int(stream._epoch) == 0  # the script's own
