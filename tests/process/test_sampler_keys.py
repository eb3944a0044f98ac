"""Samplers of the user's beside torch's `DataLoader`: the same keys reach the dataset."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from swift_loader import ConfigError, StateError, SwiftLoader
from tests import datasets
from tests.conformance import indices_of

pytestmark = pytest.mark.usefixtures("nothing_left")


class Echo:
    """Gives back what it is asked for; no ``__len__``."""

    def __getitem__(self, key: Any) -> Any:
        return type(key).__name__, key


class EchoMany(Echo):
    def __getitems__(self, keys: Any) -> list[Any]:
        return [("many", type(keys).__name__, len(keys), self[key]) for key in keys]


def as_they_are(samples: Any) -> Any:
    return samples


KEYS: dict[str, Any] = {
    "strings": ["a", "b/c.png", "", "d"],
    "tuples": [(32, 0), (64, 1), (32, 2)],
    "nested lists": [[1, [2, 3]], [], [4]],
    "floats": [0.5, 2.0, float("inf")],
    "numpy integers": list(np.arange(3)),
    "booleans": [True, False],
    "none and long ones": [None, 2**70, -1],
    "mixed": [1, "b", (2,)],
    "an array": np.arange(3),
    "tensors": [torch.tensor(2), torch.tensor([1, 2])],
}


@pytest.mark.parametrize("many", [False, True])
def test_keys_of_any_type_reach_the_dataset_as_torch_passes_them(many: bool) -> None:
    dataset = EchoMany() if many else Echo()
    keys = [key for group in KEYS.values() for key in group]
    batches: list[Any] = [*KEYS.values(), [], (1, "a"), [3, 4], "text", {"a": 1, "b": 2}]
    cases: list[dict[str, Any]] = [
        {"sampler": keys, "batch_size": 4},
        {"sampler": keys, "batch_size": 4, "drop_last": True},
        {"sampler": keys, "batch_size": None},
        {"sampler": BatchSampler(SequentialSampler(range(7)), 3, False), "batch_size": None},
        {"batch_sampler": batches},
    ]
    for case in cases:
        theirs = DataLoader(dataset, collate_fn=as_they_are, **case)  # type: ignore[arg-type]
        with SwiftLoader.from_dataset(dataset, collate_fn=as_they_are, **case) as loader:
            got, want = list(loader), list(theirs)
            assert len(loader) == len(theirs) == len(want)
        assert list(map(repr, got)) == list(map(repr, want))


@pytest.mark.parametrize("kind", ["indices", "stream"])
def test_without_batches_samples_are_converted_as_torch_converts_them(kind: str) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter([np.arange(3), {"a": np.float32(2.0)}, "text", [1, 2.5]])

    dataset: Any = list(Stream()) if kind == "indices" else Stream()
    want = list(DataLoader(dataset, batch_size=None))
    with SwiftLoader.from_dataset(dataset, batch_size=None) as loader:
        assert repr(list(loader)) == repr(want)
        assert loader.batch_size is None
    with SwiftLoader.from_dataloader(DataLoader(dataset, batch_size=None)) as loader:
        assert repr(list(loader)) == repr(want)
    with pytest.raises(ConfigError, match="batch_size"):
        SwiftLoader.from_dataset(dataset, batch_size=None, drop_last=True)


class Says:
    """A sampler whose length is another than it has."""

    def __init__(self, says: int, gives: int) -> None:
        self.says, self.gives = says, gives

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.gives))


@pytest.mark.parametrize(("says", "gives"), [(6, 8), (6, 5), (6, 0), (0, 3)])
def test_sampler_with_a_wrong_length_gives_all_that_it_has(says: int, gives: int) -> None:
    with SwiftLoader(datasets.Indices, {"n": 10}, sampler=Says(says, gives)) as loader:
        for _ in range(2):
            assert len(loader) == says
            with pytest.warns(RuntimeWarning, match=f"a length of {says} batches and gave {gives}"):
                assert [int(batch) for batch in loader] == list(range(gives))


class Fails:
    def __getitem__(self, key: Any) -> Any:
        if key == ("bad", 1):
            raise LookupError("no such picture")
        return 1


def test_bad_samples_are_named_by_their_keys() -> None:
    batches = [["x", ("bad", 1)], [("bad", 1)]]
    with (
        SwiftLoader.from_dataset(Fails(), batch_sampler=batches) as loader,
        pytest.raises(LookupError) as caught,
    ):
        list(loader)
    assert "sample ('bad', 1)" in str(caught.value.__cause__)
    with SwiftLoader.from_dataset(Fails(), batch_sampler=batches, on_error="skip") as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [1]
        assert loader.stats().skipped == (("bad", 1),)
        with pytest.raises(LookupError):  # nobody knows which sample could stand in
            next(iterator)

    def stand_in(error: Exception, key: Any) -> Any:
        return len(key)

    with SwiftLoader.from_dataset(Fails(), batch_sampler=batches, on_error=stand_in) as loader:
        assert [batch.tolist() for batch in loader] == [[1, 2], [2]]


def test_key_that_cannot_travel_is_named() -> None:
    with (
        SwiftLoader.from_dataset(Echo(), sampler=[lambda: 1]) as loader,
        pytest.raises(TypeError, match=r"lambda.* can't travel to a worker"),
    ):
        list(loader)


def test_without_workers_the_data_set_gets_the_very_keys() -> None:
    class Key:
        pass

    keys = [Key(), lambda: 1, [1, 2], ("a", Key()), 3, 4]
    got: list[Any] = []

    def kept(samples: Any) -> int:
        got.extend(samples)
        return len(got)

    class Itself:
        def __getitem__(self, key: Any) -> Any:
            return key

    def build() -> SwiftLoader:
        return SwiftLoader(
            Itself(), sampler=keys, batch_size=2, num_workers=0, collate_fn=kept, validate=False
        )

    with build() as loader:
        iterator = iter(loader)
        assert next(iterator) == 2
        state = loader.state_dict()
        assert list(iterator) == [4, 6]
    assert all(one is key for one, key in zip(got, keys, strict=True))
    got.clear()
    with build() as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert list(loader) == [2, 4]
    assert all(one is key for one, key in zip(got, keys[2:], strict=True))
    keys.insert(0, 5)
    with build() as loader, pytest.raises(StateError, match="same 1 batches"):
        loader.load_state_dict(state)
        list(loader)


class Shuffled(Sampler[int]):
    """Draws from the generators that scripts seed, and has none."""

    def __init__(self, n: int, draw: Any) -> None:
        self.n, self.draw = n, draw

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw(self.n))

    def __len__(self) -> int:
        return self.n


class WithState(Sampler[int]):
    """Goes on where its state says; its order can't be drawn again."""

    def __init__(self, n: int) -> None:
        self.n, self.left = n, [*range(n)]

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        while self.left:
            yield self.left.pop(0)
        self.left = [i * 7 % self.n for i in range(self.n)]

    def state_dict(self) -> dict[str, Any]:
        return {"left": tuple(self.left)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert type(state["left"]) is tuple
        self.left = list(state["left"])


def own_generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


SAMPLERS: dict[str, Any] = {
    "random": lambda: RandomSampler(range(40)),
    "random with a generator": lambda: RandomSampler(range(40), generator=own_generator()),
    "weighted": lambda: WeightedRandomSampler([1.0] * 40, 40, replacement=False),
    "weighted, replacing": lambda: WeightedRandomSampler([1.0] * 40, 40, generator=own_generator()),
    "subset": lambda: SubsetRandomSampler(range(40)),
    "distributed": lambda: DistributedSampler(range(40), 1, 0, seed=3),
    "numpy's": lambda: Shuffled(40, np.random.permutation),
    "python's": lambda: Shuffled(40, lambda n: random.sample(range(n), n)),
    "with a state": lambda: WithState(40),
    "batches": lambda: BatchSampler(RandomSampler(range(40)), 4, False),
    "batches with a state": lambda: BatchSampler(WithState(40), 4, False),
}


def loader_with(sampler: Any, **options: Any) -> SwiftLoader:
    if isinstance(sampler, BatchSampler):
        return SwiftLoader(datasets.Numbers, {"n": 40}, batch_sampler=sampler, **options)
    return SwiftLoader(datasets.Numbers, {"n": 40}, batch_size=4, sampler=sampler, **options)


def seeded() -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)


@pytest.mark.parametrize("name", SAMPLERS)
def test_stopped_sampler_goes_on_with_exactly_the_rest(name: str) -> None:
    make = SAMPLERS[name]
    seeded()
    want = list(DataLoader(range(40), batch_size=4, sampler=make())) if "batch" not in name else []
    seeded()
    with loader_with(make()) as loader:
        first = [indices_of(batch) for batch in loader]
        if want:
            assert first == [batch.tolist() for batch in want]  # as torch, from the same seed
        before_second = loader.state_dict()
        state_of_torch = torch.get_rng_state()
        iterator = iter(loader)
        second, states = [], [loader.state_dict()]
        for batch in iterator:
            second.append(indices_of(batch))
            states.append(json.loads(json.dumps(loader.state_dict())))
        third = [indices_of(batch) for batch in loader]
    assert sorted(chain(*second)) == list(range(40)) or "replacing" in name
    for steps in (5, 10):
        torch.manual_seed(99)  # a new process: other numbers come from the global generators
        with loader_with(make()) as loader:
            loader.load_state_dict(states[steps])
            assert loader.state_dict() == states[steps]
            iterator = iter(loader)
            assert loader.state_dict() == states[steps]
            assert len(loader) == 10 - steps
            got = [indices_of(next(iterator)) for _ in range(min(1, 10 - steps))]
            again = loader.state_dict()
            got += map(indices_of, iterator)
            assert got == second[steps:]
            if steps == 5:
                assert again == states[6]
            if "generator" in name or "state" in name or "replacing" in name:
                assert [indices_of(batch) for batch in loader] == third
    with loader_with(make()) as loader:  # a state between epochs
        loader.load_state_dict(before_second)
        torch.set_rng_state(state_of_torch)  # what a script keeps beside it, as with torch
        if "numpy" not in name and "python" not in name:
            assert [indices_of(batch) for batch in loader] == second


@pytest.mark.parametrize("staged", [False, True])
def test_batches_out_of_order_are_left_out_when_a_sampler_goes_on(staged: bool) -> None:
    def build() -> SwiftLoader:
        return loader_with(RandomSampler(range(40)), worker_per_consumer=3, in_order=False)

    with build() as loader:
        loader.start(0, to_device=(lambda batch, device: batch) if staged else None)
        iterator = iter(loader)
        got = [i for _ in range(6) for i in indices_of(next(iterator))]
        state = loader.state_dict()
    with build() as loader:
        loader.load_state_dict(state)
        got += [i for batch in loader for i in indices_of(batch)]
    assert sorted(got) == list(range(40))


def test_sampler_that_gives_other_keys_again_is_refused() -> None:
    def build(first: int) -> SwiftLoader:
        class Counts:
            at = first

            def __iter__(self) -> Iterator[int]:
                for _ in range(12):
                    self.at += 1
                    yield self.at % 40

        return loader_with(Counts())

    with build(0) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with build(5) as loader, pytest.raises(StateError, match=r"same 1 batches again.*state_dict"):
        loader.load_state_dict(state)
        list(loader)


def test_sampler_that_gives_other_keys_of_a_local_class_is_refused() -> None:
    class Key:
        def __init__(self, number: int) -> None:
            self.number = number

    class Numbers:
        def __getitem__(self, key: Key) -> int:
            return key.number

    def build(first: int) -> SwiftLoader:
        class Counts:
            def __iter__(self) -> Iterator[Key]:
                return (Key(first + i) for i in range(12))

        options: dict[str, Any] = {"batch_size": 3, "num_workers": 0, "validate": False}
        return SwiftLoader(Numbers(), sampler=Counts(), **options)

    with build(0) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with build(0) as loader:
        loader.load_state_dict(state)
        assert [i for batch in loader for i in batch.tolist()] == list(range(3, 12))
    with build(5) as loader, pytest.raises(StateError, match="same 1 batches again"):
        loader.load_state_dict(state)
        list(loader)


def test_state_of_another_sampler_is_refused_by_name() -> None:
    states: list[Any] = []
    samplers: Sequence[Any] = (
        WithState(40),
        WeightedRandomSampler([1.0] * 40, 40, generator=own_generator()),
        range(40),
    )
    for sampler in samplers:
        with loader_with(sampler, validate=False) as loader:
            next(iter(loader))
            states.append(loader.state_dict())
    broken = json.loads(json.dumps(states[1]))
    broken["sampler"]["generators"]["generator"]["$tensor"] = "AAAA"
    for sampler, state, text in (
        (range(40), states[0], "state_dict"),
        (range(40), states[1], "generators"),
        (samplers[1], states[2], "generators"),
        (samplers[1], broken, "generators.generator"),
        (range(40), {**states[2], "sampler": {}}, "sampler="),
    ):
        with loader_with(sampler) as loader, pytest.raises(StateError, match=text):
            loader.load_state_dict(state)
