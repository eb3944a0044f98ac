"""Wrong arguments, wrong calls, broken datasets: one clear error each, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

from swift_loader import (
    SKIP,
    ClosedError,
    ConfigError,
    ShippingError,
    SwiftLoader,
    TooManyBadSamplesError,
    WorkerDiedError,
    WorkerError,
)
from tests import datasets
from tests.process.test_crashes import remaining

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_what_can_not_travel_is_named() -> None:
    with pytest.raises(ShippingError, match="lock"):
        SwiftLoader(datasets.Numbers, {"n": 4, "lock": threading.Lock()})


def test_validate_raises_what_goes_wrong_before_anything_is_launched() -> None:
    with pytest.raises(ValueError, match="sample 0 is broken"):
        SwiftLoader(datasets.Raises, {"n": 4, "bad": (0,)}, batch_size=8)
    with pytest.raises(TypeError, match="unexpected keyword"):
        SwiftLoader(datasets.Numbers, {"n": 4, "nonsense": 1})


def test_validate_works_for_datasets_shorter_than_a_batch() -> None:
    with SwiftLoader(datasets.Numbers, {"n": 3}, batch_size=8) as loader:
        assert remaining(iter(loader)) == [0, 1, 2]


@pytest.mark.parametrize("validate", [True, False])
def test_constructor_that_goes_wrong_in_a_worker_arrives(validate: bool) -> None:
    def start(how: str) -> None:
        kwargs = {"how": how, "pid": os.getpid()}
        SwiftLoader(datasets.BrokenConstructor, kwargs, 1, 1, 3, validate=validate).start(0)

    with pytest.raises(FileNotFoundError, match=r"/nowhere/data\.bin") as caught:
        start("raise")
    assert "building the dataset" in str(caught.value.__cause__)
    assert "in __init__" in str(caught.value.__cause__)
    assert "During handling" not in str(caught.value.__cause__)
    with pytest.raises(WorkerError, match="SystemExit: 3"):
        start("exit")
    with pytest.raises(WorkerDiedError, match="code 9"):
        start("os._exit")


def test_validate_is_right_where_the_training_process_differs_from_a_worker() -> None:
    torch.set_default_device("meta")
    try:

        async def in_a_notebook() -> list[int]:
            with SwiftLoader(datasets.RunsAsync, {"n": 4}, batch_size=2) as loader:
                return [i for batch in loader for i in batch.tolist()]

        assert asyncio.run(in_a_notebook()) == [0, 1, 2, 3]
    finally:
        torch.set_default_device(None)


def test_exception_with_a_constructor_of_its_own_keeps_its_type_and_attributes() -> None:
    with (
        SwiftLoader(datasets.RaisesOddly, {"n": 4}, validate=False) as loader,
        pytest.raises(datasets.NoMessage, match="here: 0") as caught,
    ):
        list(loader)
    assert caught.value.code == 0


def test_stop_iteration_of_a_sample_does_not_end_the_epoch_silently() -> None:
    with (
        SwiftLoader(datasets.RaisesStop, {"n": 4}, validate=False) as loader,
        pytest.raises(WorkerError, match="StopIteration"),
    ):
        list(loader)


def told(loader: Iterable[Any]) -> list[Any]:
    """What each `next` gives: a batch's indices, or the first line of an error."""
    iterator, got = iter(loader), []
    while True:
        try:
            got.append(next(iterator)[1].tolist())
        except StopIteration:
            return got
        except ValueError as error:
            got.append(str(error).splitlines()[0])


@pytest.mark.parametrize("staged", [False, True])
def test_a_loop_that_goes_on_after_an_error_gets_the_batches_after_it_as_with_torch(
    staged: bool,
) -> None:
    dataset = datasets.Raises(9, (2, 3, 8))
    torch_dataloader = torch.utils.data.DataLoader(dataset, 2, num_workers=2)
    wanted = [batch if isinstance(batch, list) else "" for batch in told(torch_dataloader)]
    assert wanted == [[0, 1], "", [4, 5], [6, 7], ""]
    with SwiftLoader.from_dataset(
        dataset, batch_size=2, worker_per_consumer=2, validate=False
    ) as loader:
        loader.start(0, to_device=(lambda batch, device: batch) if staged else None)
        for _ in range(2):
            got = told(loader)
            assert got == [[0, 1], "sample 2 is broken", [4, 5], [6, 7], "sample 8 is broken"]


class BreaksOnce(torch.utils.data.IterableDataset[int]):
    """A generator ends with its error; an iterator may go on, or not even begin."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.at = -1

    def __iter__(self) -> Iterator[int]:
        if self.kind == "generator":
            return self.generate()
        if self.kind == "beginning":
            raise ValueError("sample 5 is broken")
        self.at = -1
        return self

    def generate(self) -> Iterator[int]:
        yield from range(5)
        raise ValueError("sample 5 is broken")

    def __next__(self) -> int:
        self.at += 1
        if self.at == 5:
            raise ValueError("sample 5 is broken")
        if self.at >= 10:
            raise StopIteration
        return self.at


def told_of_stream(loader: Iterable[Any]) -> list[Any]:
    iterator, got = iter(loader), []
    for _ in range(20):
        try:
            got.append(next(iterator).tolist())
        except StopIteration:
            return got
        except ValueError:
            got.append("broken")
    raise AssertionError(got)


@pytest.mark.parametrize("kind", ["generator", "iterator", "beginning"])
def test_a_stream_goes_on_after_an_error_as_with_torch(kind: str) -> None:
    dataset = BreaksOnce(kind)
    with SwiftLoader.from_dataset(dataset, batch_size=2, validate=False) as loader:
        got = told_of_stream(loader)
        assert told_of_stream(loader) == got
    if kind == "beginning":  # torch's worker fails in another way with each further batch
        assert got == ["broken"]
    else:
        assert got == told_of_stream(torch.utils.data.DataLoader(dataset, 2, num_workers=1))


def test_a_batch_that_failed_counts_as_taken_in_the_state() -> None:
    dataset = datasets.Raises(8, (2,))
    with SwiftLoader.from_dataset(dataset, batch_size=2, validate=False) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(ValueError, match="sample 2"):
            next(iterator)
        state = loader.state_dict()
    with SwiftLoader.from_dataset(dataset, batch_size=2, validate=False) as loader:
        loader.load_state_dict(state)
        assert told(loader) == [[4, 5], [6, 7]]


def test_skipped_samples_keep_the_number_of_steps_and_are_counted() -> None:
    bad = (3, 4, 5, 11)
    with SwiftLoader(
        datasets.Raises, {"n": 24, "bad": bad}, batch_size=3, on_error="skip"
    ) as loader:
        batches = [batch[1].tolist() for batch in loader]
        stats = loader.stats()
    assert len(batches) == len(loader) == 8
    assert batches[1] == [6]  # all three were bad: the next good sample stands in
    assert batches[3] == [9, 10]
    assert 3 in stats.skipped
    assert stats.nb_skipped >= 4


def test_replaced_samples_keep_the_batch_size() -> None:
    options: Any = {"on_error": "replace", "prefetch_epochs": 0}  # the next epoch has them too
    with SwiftLoader(datasets.Raises, {"n": 12, "bad": (1, 7)}, batch_size=4, **options) as loader:
        sizes = [len(batch[1]) for batch in loader]
        assert sizes == [4, 4, 4]
        assert loader.stats().nb_replaced == 2


def test_a_callable_decides_about_bad_samples() -> None:
    def decide(error: Exception, index: int) -> Any:
        if index == 1:
            return SKIP
        if index == 2:
            return torch.zeros(4), -1
        raise error

    with SwiftLoader(
        datasets.Raises, {"n": 8, "bad": (1, 2, 6)}, batch_size=4, on_error=decide
    ) as loader:
        iterator = iter(loader)
        assert next(iterator)[1].tolist() == [0, -1, 3]
        with pytest.raises(ValueError, match="sample 6"):
            next(iterator)


def test_too_many_bad_samples_are_an_error() -> None:
    with (
        SwiftLoader(
            datasets.Raises,
            {"n": 200, "bad": tuple(range(100, 200))},
            batch_size=4,
            on_error="skip",
            max_bad_samples=10,
        ) as loader,
        pytest.raises(TooManyBadSamplesError, match="max_bad_samples=10"),
    ):
        list(loader)


def test_calls_in_the_wrong_order_are_clear_errors() -> None:
    loader = SwiftLoader(datasets.Numbers, {"n": 8}, nb_consumer=2)
    for index in (-1, 2, "0", True):
        with pytest.raises(ConfigError, match="consumer_index"):
            loader.start(index)  # type: ignore[arg-type]
    with pytest.raises(ClosedError, match="start"):
        iter(loader)
    with pytest.raises(ConfigError, match="device"):
        loader.start(0, "gpu!")
    loader.start(1)
    with pytest.raises(ClosedError, match="start"):
        loader.start(1)
    assert remaining(iter(loader)) == [4, 5, 6, 7]
    loader.close()
    loader.close()
    with pytest.raises(ClosedError, match="closed"):
        iter(loader)
    with pytest.raises(ClosedError, match="closed"):
        loader.start(0)


def test_next_after_close_is_a_clear_error() -> None:
    loader = SwiftLoader(datasets.Numbers, {"n": 8})
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(ClosedError, match="closed"):
        next(iterator)


def test_second_iterator_ends_the_first_one_plainly() -> None:
    with SwiftLoader(datasets.Numbers, {"n": 8}) as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        with pytest.raises(ClosedError, match="another iteration"):
            next(first)
        assert remaining(second) == list(range(8))


def test_empty_dataset_is_an_empty_epoch() -> None:
    with SwiftLoader(datasets.Numbers, {"n": 0}, nb_consumer=2) as loader:
        loader.start(1)
        assert len(loader) == 0
        assert list(loader) == []
        assert list(loader) == []


def test_fewer_samples_than_consumers_offers_padding() -> None:
    with pytest.raises(ConfigError, match="pad"):
        SwiftLoader(datasets.Numbers, {"n": 2}, nb_consumer=3).start(0)
    with SwiftLoader(datasets.Numbers, {"n": 2}, nb_consumer=3, tail="pad") as loader:
        loader.start(2)
        assert len(remaining(iter(loader))) == 1


def test_dataset_that_returns_a_tensor_of_another_device_is_explained() -> None:
    loader = SwiftLoader(datasets.OnMeta, {"n": 4}, validate=False)
    with loader, pytest.raises(TypeError, match=r"(?i)meta"):
        list(loader)
