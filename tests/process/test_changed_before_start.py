"""What the script changes between building a loader and starting it, workers see, as torch's do."""

from __future__ import annotations

import os
import pickle
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset

from swift_loader import StateError, SwiftLoader
from swift_loader.loader import shipped
from tests import datasets
from tests.process.scripts import printed_by

pytestmark = pytest.mark.usefixtures("nothing_left")


class Sized(datasets.Numbers):
    """Its samples say all that may be changed in it."""

    size = 1

    def __init__(self, n: int = 4) -> None:
        super().__init__(n)
        self.transform: Any = str
        self.array = np.zeros(2000)
        self.tensor = torch.zeros(3, 4)
        self.nested = {"a": {"b": [0]}}
        self.shared = torch.zeros(2).share_memory_()

    def __getitem__(self, index: int) -> list[str]:
        held = self.array[7], self.tensor[1, 1].item(), self.nested, self.shared[0].item()
        return [self.transform(index), f"{self.size} {held}"]


class Stream(IterableDataset[int]):
    step = 1

    def __iter__(self) -> Any:
        return iter(range(0, 8, self.step))


class Collate:
    sign = 1

    def __call__(self, samples: list[Any]) -> Any:
        return self.sign, samples


def _attribute(dataset: Any, _: Any) -> None:
    dataset.size = 64


def _array(dataset: Any, _: Any) -> None:
    dataset.array[7] = 5


def _tensor(dataset: Any, _: Any) -> None:
    dataset.tensor[1, 1] = 5


def _nested(dataset: Any, _: Any) -> None:
    dataset.nested["a"]["b"].append(5)


def _shared(dataset: Any, _: Any) -> None:
    dataset.shared[0] = 5


def _below(dataset: Any, _: Any) -> None:
    dataset.dataset.transform = hex


def _first(dataset: Any, _: Any) -> None:
    dataset.datasets[0].transform = hex


def _appended(dataset: Any, _: Any) -> None:
    dataset += [4, 5, 6]


def _item(dataset: Any, _: Any) -> None:
    dataset[1] = 40


def _grown(dataset: Any, _: Any) -> None:
    dataset.n = 9


def _sign(_: Any, collate: Any) -> None:
    collate.sign = -1


def _step(dataset: Any, _: Any) -> None:
    dataset.step = 2


Change = Callable[[Any, Any], None]

CHANGES: dict[str, tuple[Callable[[], Any], Change]] = {
    "an attribute": (Sized, _attribute),
    "an array": (Sized, _array),
    "a tensor": (Sized, _tensor),
    "a nested dict": (Sized, _nested),
    "shared memory": (Sized, _shared),
    "below a Subset": (lambda: Subset(Sized(), [0, 2]), _below),
    "below a ConcatDataset": (lambda: ConcatDataset([Sized(), Sized()]), _first),
    "a list": (lambda: [0, 1, 2, 3], _appended),
    "an item of a list": (lambda: [0, 1, 2, 3], _item),
    "its length": (Sized, _grown),
    "collate_fn": (Sized, _sign),
    "a stream": (Stream, _step),
}
WAYS: list[dict[str, Any]] = [
    {"start_method": "fresh"},
    {"start_method": "fork"},
    {"start_method": "thread"},
    {"num_workers": 0},
    {"start_method": "fresh", "validate": False},
]


def _seen_by_torch(make: Callable[[], Any], change: Change) -> list[str]:
    dataset, collate = make(), Collate()
    loader: Any = DataLoader(
        dataset, 2, num_workers=1, collate_fn=collate, multiprocessing_context="fork"
    )
    change(dataset, collate)
    return list(map(repr, loader))


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_is_changed_before_the_start_reaches_workers_as_with_torch(
    way: dict[str, Any],
) -> None:
    for name, (make, change) in CHANGES.items():
        dataset, collate = make(), Collate()
        if isinstance(dataset, Stream) and way.get("start_method") == "thread":
            continue  # refused
        with SwiftLoader(dataset, batch_size=2, collate_fn=collate, **way) as loader:
            change(dataset, collate)
            assert list(map(repr, loader)) == _seen_by_torch(make, change), name


SCRIPT = """
import os
from torch.utils.data import DataLoader, Subset
from swift_loader import SwiftLoader

FACTOR = 3


class Data:
    size = 1

    def __init__(self):
        self.transform = lambda i: i * FACTOR

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.transform(i), self.size


def collate(samples):
    return samples


if __name__ == "__main__":
    for method in ("main", "fresh"):
        data = Data()
        theirs = DataLoader(
            Subset(data, [1, 3]), 2, num_workers=1, collate_fn=collate,
            multiprocessing_context="fork",
        )
        ours = SwiftLoader(
            Subset(data, [1, 3]), batch_size=2, collate_fn=collate, start_method=method
        )
        with ours.with_options() as unchanged, ours:
            before = os.fstat(unchanged._engine.payload_fd).st_ino
            unchanged.start()
            assert os.fstat(unchanged._engine.payload_fd).st_ino == before
            data.size, data.transform = 64, lambda i: -i * FACTOR
            assert list(ours) == list(theirs) == [[(-3, 64), (-9, 64)]]
    print("alike")
"""


def test_it_does_so_in_a_script_by_name_and_by_value(tmp_path: Path) -> None:
    assert printed_by(SCRIPT, tmp_path)[0] == "alike\n"


def test_a_wrapper_that_only_the_loader_has_is_seen_too() -> None:
    inner = Sized()
    with SwiftLoader(Subset(inner, [0, 2]), batch_size=2, collate_fn=list) as loader:
        inner.transform = hex
        assert [sample[0] for sample in next(iter(loader))] == ["0x0", "0x2"]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_len_is_that_of_a_list_as_it_is(way: dict[str, Any]) -> None:
    dataset = [1, 2, 3, 4]
    with SwiftLoader(dataset, batch_size=2, **way) as loader:
        assert len(loader) == 2
        dataset.append(5)
        assert (len(loader), loader.nb_samples) == (3, 5)
        assert len(list(loader)) == 3


def test_len_is_that_of_the_data_set_as_it_is() -> None:
    dataset = Sized(4)
    with SwiftLoader(dataset, batch_size=2) as loader:
        assert len(loader) == 2
        dataset.n = 9
        assert (len(loader), loader.nb_samples) == (5, 9)
        assert len(loader.batch_sampler) == 5
        assert len(list(loader)) == 5
        dataset.n = 100  # no one of the workers is told
        assert len(loader) == 5
    with SwiftLoader([1, 2, 3], validate=False) as loader:
        assert len(loader) == 3


def test_a_state_of_a_data_set_that_has_grown_since_is_refused_as_at_the_start() -> None:
    with SwiftLoader(Sized(8), batch_size=2) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
    dataset = Sized(4)
    with SwiftLoader(dataset, batch_size=2) as loader:
        dataset.n = 8
        loader.load_state_dict(state)
        assert len(loader) == 3
        dataset.n = 4
        with pytest.raises(StateError):
            len(loader)
        dataset.n = 8
        loader.load_state_dict(state)
        assert len(loader) == 3
        assert len(list(loader)) == 3


def test_a_data_set_that_is_not_changed_is_not_shipped_again() -> None:
    for dataset in (Sized(), [1, 2, 3], Stream(), Subset(Sized(), [0, 1])):
        with SwiftLoader(dataset, collate_fn=Collate(), transform=lambda x: x) as loader:
            before = os.fstat(loader._engine.payload_fd).st_ino
            loader.start()
            assert os.fstat(loader._engine.payload_fd).st_ino == before


@pytest.mark.parametrize("asked", [False, True])
def test_a_second_loader_of_data_that_nobody_has_reads_the_same_copy(asked: bool) -> None:
    with SwiftLoader(Sized(), batch_size=4, collate_fn=list) as one:
        one.start()
        if asked:
            one.dataset.size = 64
        with one.with_options(shuffle=True) as two:
            samples = next(iter(two))
            inodes = {os.fstat(loader._engine.payload_fd).st_ino for loader in (one, two)}
    assert [sample[1][:2] for sample in samples] == (["64"] if asked else ["1 "]) * 4
    assert len(inodes) == 1 + asked


def test_nothing_is_kept_from_the_start_on() -> None:
    for end in (SwiftLoader.start, SwiftLoader.close):
        dataset = Sized()
        gone = weakref.ref(dataset)
        with SwiftLoader(dataset) as loader:
            del dataset
            assert gone() is not None
            end(loader)
            assert gone() is None


def test_a_second_loader_of_the_same_data_sees_changes_too_and_leaves_the_first_alone() -> None:
    dataset = Sized()
    with SwiftLoader(dataset, batch_size=4, collate_fn=list) as one, one.with_options() as two:
        one.start()
        dataset.size = 64
        assert [sample[1][:2] for sample in next(iter(two))] == ["64"] * 4
        with pytest.warns(RuntimeWarning, match="size was 1, is now 64"):
            iterator = iter(one)
        assert [sample[1][:2] for sample in next(iterator)] == ["1 "] * 4
        with one.with_options(shuffle=True) as three:
            assert [sample[1][:2] for sample in next(iter(three))] == ["64"] * 4


def test_a_copy_is_of_the_data_set_as_it_is() -> None:
    dataset = Sized()
    del dataset.shared
    with SwiftLoader(dataset, batch_size=4, collate_fn=list, validate=False) as loader:
        dataset.shared, dataset.size = torch.zeros(2), 64
        with pickle.loads(pickle.dumps(loader)) as copied:
            assert [sample[1][:2] for sample in next(iter(copied))] == ["64"] * 4


def test_a_call_is_made_on_the_data_set_as_it_is_at_the_start() -> None:
    class Growing(Sized):
        def grow(self, by: int) -> None:
            self.size += by

    for way in WAYS:
        dataset = Growing()
        with SwiftLoader(dataset, batch_size=4, collate_fn=list, **way) as loader:
            dataset.size = 60
            loader.call_dataset("grow", 4)
            assert [sample[1][:2] for sample in next(iter(loader))] == ["64"] * 4


def test_a_cache_keeps_nothing_of_the_data_set_as_it_was() -> None:
    dataset = Sized()
    with SwiftLoader(dataset, batch_size=4, collate_fn=list, cache="1MB") as first:
        assert [sample[1][:2] for sample in next(iter(first))] == ["1 "] * 4
        second = first.with_options()
        dataset.size = 64
        with second:
            assert [sample[1][:2] for sample in next(iter(second))] == ["64"] * 4


class Opening(Sized):
    """A script that looks at a sample opens its file."""

    file: Any = None

    def open(self) -> None:
        self.file = open(os.devnull)  # noqa: SIM115


@pytest.mark.parametrize("why", ["an open file", "too large", "pickled too large"])
def test_what_can_not_be_looked_at_again_is_as_it_was_and_a_warning_says_so(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "too large":
        monkeypatch.setattr(shipped, "_MOST_BYTES", 1000)
    if why == "pickled too large":
        monkeypatch.setattr(shipped, "_MOST_PICKLED", 100)
    dataset = Opening()
    with SwiftLoader(dataset, batch_size=4, collate_fn=list) as loader:
        dataset.size, dataset.n, dataset.epoch, dataset._hits = 64, 4, 3, 5  # type: ignore[attr-defined]
        if why == "an open file":
            dataset.open()
        with pytest.warns(
            RuntimeWarning, match=r"Opening was .* \(size was 1, is now 64\)"
        ) as told:
            iterator = iter(loader)
        assert [one.filename for one in told] == [__file__]
        assert [sample[1][:2] for sample in next(iterator)] == ["1 "] * 4
        if dataset.file is not None:
            dataset.file.close()


def test_a_function_beside_a_class_is_as_it_was_and_a_warning_says_so() -> None:
    collate = Collate()
    with SwiftLoader(Sized, {"n": 4}, batch_size=4, collate_fn=collate) as loader:
        collate.sign = -1
        with pytest.warns(RuntimeWarning, match="the Collate was .*sign was 1, is now -1") as told:
            loader.start()
        assert [one.filename for one in told] == [__file__]
        assert next(iter(loader))[0] == 1


@pytest.mark.parametrize("way", WAYS[:3], ids=str)
def test_what_is_changed_after_the_start_is_told_once_for_each_change(way: dict[str, Any]) -> None:
    inner, collate = Sized(), Collate()
    dataset = Subset(inner, [0, 1])
    with SwiftLoader(dataset, batch_size=2, collate_fn=collate, **way) as loader:
        loader.start()
        for one, name, value in ((inner, "size", 2), (collate, "sign", 3), (inner, "size", 5)):
            setattr(one, name, value)
            text = rf"changed after the workers were started \({name} was -?\d, is now {value}\)"
            with pytest.warns(RuntimeWarning, match=text) as told:
                iter(loader)
            assert [warning.filename for warning in told] == [__file__]
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert next(iter(loader))[0] == 1


def test_a_generator_counts_as_it_is_at_the_start() -> None:
    def order(seed_first: bool) -> list[int]:
        generator = torch.Generator()
        if seed_first:
            generator.manual_seed(5)
        with SwiftLoader(range(50), shuffle=True, generator=generator) as loader:
            generator.manual_seed(5)
            return [int(batch) for batch in loader]

    assert order(False) == order(True)


def test_torch_has_workers_that_see_what_is_changed_between_epochs() -> None:
    dataset = Sized()
    theirs: Any = DataLoader(
        dataset, 4, num_workers=1, collate_fn=list, multiprocessing_context="fork"
    )
    with SwiftLoader(dataset, batch_size=4, collate_fn=list) as ours:
        assert list(ours) == list(theirs)
        dataset.array[7] = 5  # a difference that docs/moving.md names
        assert list(ours) != list(theirs)


class Epochs(Sized):
    """Draws what it does from its epoch."""

    seed = 0

    def set_epoch(self, epoch: int) -> None:
        self.seed = 10 * epoch


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_what_an_epoch_changes_and_what_is_told_need_no_warning() -> None:
    dataset = Epochs()
    with SwiftLoader(dataset, batch_size=4, collate_fn=list) as loader:
        for epoch in range(3):
            dataset.set_epoch(epoch)
            assert len(list(loader)) == 1
        dataset.size = 7
        loader.call_dataset("__setattr__", "size", 7)
        assert [sample[1][:2] for sample in next(iter(loader))] == ["7 "] * 4
    for way in ({"num_workers": 0}, {"start_method": "thread"}):
        unchanged = Sized()
        with SwiftLoader(unchanged, batch_size=4, collate_fn=list, **way) as loader:  # type: ignore[arg-type]
            for _ in range(2):
                list(loader)
                unchanged.size = unchanged.size
