"""`worker_per_consumer=0`: the same batches, made in the training process."""

from __future__ import annotations

import dataclasses
import enum
import os
import re
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
    default_convert,
    get_worker_info,
)

from swift_loader import BatchError, ConfigError, SwiftLoader, TooManyBadSamplesError, WorkerError
from tests import datasets

pytestmark = pytest.mark.usefixtures("nothing_left")


class Drawing:
    """Samples that draw, and say where they were made."""

    def __init__(self, n: int = 12) -> None:
        self.n = n
        self.lock: Any = None
        self.seen: list[int] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.seen.append(index)
        return {
            "index": index,
            "torch": torch.rand(3),
            "numpy": np.random.rand(2),
            "pid": os.getpid(),
            "info": get_worker_info() is None,
        }


class Items(IterableDataset[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n))


def test_the_same_batches_with_the_same_draws() -> None:
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3}
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with (
        SwiftLoader(Drawing, num_workers=2, **options) as theirs,
        SwiftLoader(Drawing, num_workers=0, **options) as ours,
    ):
        assert len(ours) == len(theirs)
        for _ in range(2):
            for a, b in zip(ours, theirs, strict=True):
                for name in ("index", "torch", "numpy"):
                    assert torch.equal(a[name], b[name])
                assert set(a["pid"].tolist()) == {os.getpid()}
                assert all(a["info"])
        assert ours.stats().batches == 6
        assert ours.num_workers == 0
        assert ours.prefetch_factor is None
        assert not ours.persistent_workers
    assert torch.equal(torch.get_rng_state(), before)


def test_it_is_the_users_own_data_set_and_nothing_is_made_ahead() -> None:
    rows = Drawing()
    rows.lock = __import__("threading").Lock()  # it need not travel
    nb_processes = len(psutil.Process().children())
    with SwiftLoader(rows, batch_size=3, num_workers=0) as loader:
        iterator = iter(loader)
        next(iterator)
        assert rows.seen == [0, 1, 2]
        assert loader.dataset is rows
        state = loader.state_dict()
        assert len(list(iterator)) == 3
        loader.load_state_dict(state)
        assert len(list(loader)) == 3
        assert len(psutil.Process().children()) == nb_processes


def test_an_error_has_its_own_traceback_and_the_loop_may_go_on() -> None:
    with SwiftLoader(datasets.Raises, {"n": 6, "bad": (2,)}, batch_size=2, num_workers=0) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(ValueError, match="sample 2") as caught:
            next(iterator)
        assert "__getitem__" in "".join(traceback.format_tb(caught.value.__traceback__))
        assert next(iterator)[1].tolist() == [4, 5]
        assert list(iterator) == []
    with (
        SwiftLoader(
            datasets.Raises,
            {"n": 6, "bad": (2, 3, 4)},
            num_workers=0,
            on_error="skip",
            max_bad_samples=1,
        ) as loader,
        pytest.raises(TooManyBadSamplesError, match="max_bad_samples=1"),
    ):
        list(loader)


class Failing:
    """Sample 1 raises while another error is handled; sample 2 raises `StopIteration`."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 1:
            try:
                return int("one")
            except ValueError:
                raise LookupError("sample 1")  # noqa: B904 - its context is to be seen
        return next(iter(())) if index == 2 else index


@pytest.mark.parametrize("num_workers", [0, 1])
def test_errors_keep_their_context_and_none_ends_the_epoch_in_silence(num_workers: int) -> None:
    with SwiftLoader(Failing, {}, num_workers=num_workers) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0]
        with pytest.raises(LookupError) as caught:
            next(iterator)
        assert isinstance(caught.value.__context__, ValueError)
        with pytest.raises(WorkerError, match=r"batch 2 of epoch 0.*StopIteration") as ended:
            next(iterator)
        assert isinstance(ended.value.__cause__, StopIteration)
        assert next(iterator).tolist() == [3]
        assert list(iterator) == []


def _stops(batch: Any, device: torch.device) -> Any:
    return next(iter(()))


def test_a_move_that_raises_stop_iteration_does_not_end_the_epoch() -> None:
    with SwiftLoader(Failing, {}) as loader:
        loader.start(to_device=_stops)
        with pytest.raises(WorkerError, match="StopIteration"):
            next(iter(loader))


def test_streams_samplers_devices_and_from_dataloader() -> None:
    rows = TensorDataset(torch.arange(10))
    theirs = DataLoader(rows, batch_size=4, sampler=range(3, 9))
    with SwiftLoader.from_dataloader(theirs) as ours:
        assert ours.num_workers == 0
        assert [b[0].tolist() for b in ours] == [b[0].tolist() for b in theirs]
    with SwiftLoader(Items, {"n": 7}, batch_size=3, num_workers=0) as loader:
        for _ in range(2):
            assert [len(batch) for batch in loader] == [3, 3, 1]
    with SwiftLoader(rows, batch_size=4, num_workers=0) as loader:
        loader.start(device="meta")
        assert [batch[0].device.type for batch in loader] == ["meta"] * 3


class FailsAt(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(5)
        raise LookupError("at 5")


def test_an_error_of_a_stream_is_its_own() -> None:
    with SwiftLoader(FailsAt, batch_size=2, num_workers=0, validate=False) as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(LookupError, match="at 5") as caught:
            next(batches)
        assert caught.traceback[-1].name == "__iter__"
        assert next(batches, None) is None


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4, "sampler": SequentialSampler(range(6))},
        {"batch_size": 4, "sampler": SequentialSampler(range(12))},
        {"batch_size": 4, "sampler": RandomSampler(range(5))},
        {"batch_size": 4, "collate_fn": default_convert},
        {"batch_size": None, "collate_fn": default_collate},
        {"batch_sampler": [[1, 2], [3]], "collate_fn": default_convert},
        {"batch_size": None, "sampler": [[1, 2], [3]], "collate_fn": default_collate},
    ],
    ids=["part", "whole", "random part", "convert", "collate", "convert lists", "collate lists"],
)
def test_a_dataloader_of_a_part_or_with_the_other_default_is_taken_as_it_is(
    options: dict[str, Any],
) -> None:
    rows = np.arange(24).reshape(12, 2).tolist()
    dataset: Any = Picking(rows)

    def seen(loader: Any) -> list[str]:
        each = [str(batch) for batch in loader]
        return sorted(re.findall("[0-9]+", str(each))) if "Random" in str(options) else each

    theirs = DataLoader(dataset, **options)
    torch.manual_seed(0)
    expected = seen(theirs)
    torch.manual_seed(0)
    with SwiftLoader.from_dataloader(theirs) as ours:
        assert len(ours) == len(theirs)
        assert seen(ours) == expected


class Picking(list[Any]):
    """Takes a list of indices, too."""

    def __getitem__(self, index: Any) -> Any:
        take = super().__getitem__
        return [take(each) for each in index] if isinstance(index, list) else take(index)


class InOne(list[int]):
    """Gives a batch at once, in its own way."""

    def __init__(self, make: Any) -> None:
        super().__init__(range(6))
        self.make = make

    def __getitems__(self, indices: list[int]) -> Any:
        return self.make(indices)


IN_ONE: dict[str, Any] = {
    "dict": lambda indices: {"a": torch.tensor(indices), "b": indices},
    "tensor": torch.tensor,
    "array": np.array,
    "tuple": tuple,
    "text": str,
}


@pytest.mark.parametrize("kind", IN_ONE)
def test_a_collate_fn_gets_what_getitems_gives_as_it_is(kind: str) -> None:
    options: dict[str, Any] = {"batch_size": 4, "collate_fn": lambda batch: batch}
    rows: Any = InOne(IN_ONE[kind])
    with SwiftLoader(rows, num_workers=0, **options) as ours:
        for mine, torchs in zip(ours, DataLoader(rows, **options), strict=True):
            assert (type(mine), str(mine)) == (type(torchs), str(torchs))


@pytest.mark.parametrize("options", [{}, {"transform": str, "collate_fn": list}], ids=str)
def test_a_dict_of_getitems_is_not_taken_for_samples(options: dict[str, Any]) -> None:
    with SwiftLoader(InOne(IN_ONE["dict"]), batch_size=4, num_workers=0, **options) as loader:
        with pytest.raises(TypeError, match="__getitems__ gave a dict in place of a list"):
            next(iter(loader))


class Growing(list[int]):
    def set_epoch(self, epoch: int) -> None:
        self[:] = range(4 + 4 * epoch)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_data_set_that_grows_is_said(shuffle: bool) -> None:
    with SwiftLoader(Growing(range(4)), batch_size=2, num_workers=0, shuffle=shuffle) as loader:
        assert len(list(loader)) == 2
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"had 4 samples .* and has 8 in epoch 1"):
                next(iter(loader))
            loader.set_epoch(1)
        loader.set_epoch(0)
        assert len(list(loader)) == 2


@pytest.mark.parametrize(
    "options", [{"batch_size": 4}, {"batch_tokens": 60, "lengths": list(range(1, 24))}], ids=str
)
def test_the_length_and_the_sampler_are_those_of_the_epoch_at_hand(options: Any) -> None:
    rows = torch.arange(23)

    def built() -> SwiftLoader:
        return SwiftLoader(rows, num_workers=0, shuffle=True, **options)

    with built() as loader:
        first, second = ([batch.tolist() for batch in loader] for _ in range(2))
        loader.set_epoch(0)
        iterator = iter(loader)
        next(iterator)
        assert list(loader.batch_sampler) == first  # not those of the next one
        state = loader.state_dict()
        assert [len(loader.sampler), len(list(iterator))] == [23, len(first) - 1]
        assert list(loader.batch_sampler) == second
    with built() as loader:
        loader.load_state_dict(state)
        assert len(loader) == len(first) - 1  # before anything is begun
        assert list(loader.sampler) == [index for batch in first[1:] for index in batch]
        assert [batch.tolist() for batch in loader] == first[1:]


def test_classes_of_a_batch_are_those_of_the_script() -> None:
    class Colour(enum.Enum):
        RED = 1

    @dataclasses.dataclass
    class Item:
        colour: Colour
        at: torch.Tensor

    class Rows:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, i: int) -> Any:
            return Item(Colour.RED, torch.tensor(i)), lambda: Colour  # which pickle can't take

    def listed(samples: list[Any]) -> list[Any]:
        return samples

    with SwiftLoader(Rows(), batch_size=2, num_workers=0, collate_fn=listed) as loader:
        for batch in loader:
            for item, function in batch:
                assert type(item) is Item
                assert item.colour is Colour.RED
                assert function() is Colour


class Uneven:
    """Rows of two lengths; row 1 raises."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, i: int) -> torch.Tensor:
        if i == 1:
            raise ValueError(f"row {i}")
        return torch.zeros(1 + i % 2)


class UnevenStream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.zeros(1 + i // 2) for i in range(4))


@pytest.mark.parametrize("dataset", [Uneven(), UnevenStream()], ids=["left out", "stream"])
def test_samples_that_do_not_fit_are_named_by_place_if_their_numbers_are_not_known(
    dataset: Any,
) -> None:
    with SwiftLoader(
        dataset, batch_size=5, num_workers=0, on_error="skip", validate=False
    ) as loader:
        names = r"shapes differ: \(1,\) in places 0, .*; \(2,\) in places? "
        with pytest.raises(BatchError, match=names):
            next(iter(loader))
