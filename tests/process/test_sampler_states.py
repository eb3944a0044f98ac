"""States of samplers between epochs: the next epoch comes as it would have, or it is an error."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from swift_loader import StateError, SwiftLoader

pytestmark = pytest.mark.usefixtures("nothing_left")

N = 40


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


class Holds(Sampler[int]):
    """Its order is that of a sampler that it holds somewhere."""

    def __init__(self, where: Any) -> None:
        self.where = where(RandomSampler(range(N), generator=generator()))

    def __iter__(self) -> Iterator[int]:
        where = self.where
        while not isinstance(where, Sampler):
            where = where["inner"] if isinstance(where, dict) else where[0]
        return iter(where)

    def __len__(self) -> int:
        return N


class Slotted(Sampler[int]):
    __slots__ = ("__generator",)

    def __init__(self) -> None:
        self.__generator = generator()

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(N, generator=self.__generator).tolist())

    def __len__(self) -> int:
        return N


class Draws(Sampler[int]):
    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw())

    def __len__(self) -> int:
        return N


class Counts(Sampler[int]):
    """Another order in each epoch, by a counter of its own."""

    epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(random.Random(self.epoch).sample(range(N), N))


class Grows(Sampler[int]):
    """One batch more in each epoch, and the same beginning."""

    epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(range(8 * self.epoch))


class GrowsAndSays(Grows):
    def __len__(self) -> int:
        return 8 * self.epoch


class ItsOwnIterator:
    """As people write one: the sampler is the iterator."""

    def __iter__(self) -> Iterator[int]:
        self.at = -1
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at >= N:
            raise StopIteration
        return self.at


class Counted(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(N))


def as_it_goes(draw: Any) -> Any:
    """Keys that are drawn one by one."""
    return lambda: (int(draw(N)) for _ in range(N))


def in_blocks() -> Iterator[int]:
    """Keys of which some are drawn at once, and the next after these."""
    for first in range(0, N, 20):
        yield from (first + np.random.permutation(20)).tolist()


def late(draw: Any) -> Any:
    """Keys that are drawn after the first four batches."""

    def keys() -> Iterator[int]:
        yield from range(16)
        yield from (16 + int(one) for one in draw(N - 16))

    return keys


EXACT: dict[str, Any] = {
    "random": lambda: RandomSampler(range(N)),
    "weighted": lambda: WeightedRandomSampler([1.0] * N, N),
    "with a generator": lambda: RandomSampler(range(N), generator=generator()),
    "held": lambda: Holds(lambda it: it),
    "in a tuple": lambda: Holds(lambda it: (it,)),
    "in a dict": lambda: Holds(lambda it: [{"inner": it}]),
    "in a slot": Slotted,
    "numpy's": lambda: Draws(lambda: np.random.permutation(N).tolist()),
    "python's": lambda: Draws(lambda: random.sample(range(N), N)),
    "numpy's as it goes": lambda: Draws(as_it_goes(np.random.randint)),
    "python's as it goes": lambda: Draws(as_it_goes(random.randrange)),
    "torch's as it goes": lambda: Draws(as_it_goes(lambda n: torch.randint(n, ()))),
    "in blocks": lambda: Draws(in_blocks),
    "in order": lambda: SequentialSampler(range(N)),
    "distributed": lambda: DistributedSampler(range(N), 1, 0, seed=3),
    "distributed, in order": lambda: DistributedSampler(range(N), 1, 0, shuffle=False),
    "a list": lambda: list(range(N)),
    "its own iterator": ItsOwnIterator,
    "batches": lambda: BatchSampler(Holds(lambda it: it), 4, False),
}
LOST: dict[str, Any] = {"counts": Counts, "grows": Grows, "grows and says": GrowsAndSays}


def loader_with(sampler: Any, **more: Any) -> SwiftLoader:
    torch.manual_seed(11)
    np.random.seed(11)
    random.seed(11)
    options: dict[str, Any] = {"num_workers": 0, "validate": False, "collate_fn": list, **more}
    if isinstance(sampler, BatchSampler):
        return SwiftLoader(range(N), batch_sampler=sampler, **options)
    return SwiftLoader(range(N), batch_size=4, sampler=sampler, **options)


def run_to(sampler: Any, epochs: int, steps: int | None) -> tuple[Any, list[Any]]:
    """A state after so many epochs and steps, and the rest of the epoch. None: before `iter`."""
    with loader_with(sampler) as loader:
        for _ in range(epochs):
            list(loader)
        if steps is None:
            state = loader.state_dict()
            return state, list(loader)
        iterator = iter(loader)
        for _ in range(steps):
            next(iterator)
        return loader.state_dict(), list(iterator)


@pytest.mark.parametrize("steps", [None, 0, 2])
@pytest.mark.parametrize("name", EXACT)
def test_a_new_process_goes_on_with_the_epoch_that_would_have_come(
    name: str, steps: int | None
) -> None:
    for epochs in (1, 2):
        state, rest = run_to(EXACT[name](), epochs, steps)
        with loader_with(EXACT[name]()) as loader:
            loader.load_state_dict(json.loads(json.dumps(state)))
            assert list(loader) == rest


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("name", EXACT)
def test_the_epochs_after_one_that_was_resumed_come_as_they_would_have(
    name: str, steps: int
) -> None:
    for epochs in (0, 1):
        with loader_with(EXACT[name]()) as loader:
            for _ in range(epochs):
                list(loader)
            iterator = iter(loader)
            for _ in range(steps):
                next(iterator)
            state = loader.state_dict()
            want = [list(iterator), list(loader), list(loader)]
        with loader_with(EXACT[name]()) as loader:
            loader.load_state_dict(json.loads(json.dumps(state)))
            assert [list(loader) for _ in range(3)] == want


def test_a_sampler_that_draws_as_it_goes_leaves_the_scripts_numbers_alone_after_a_resume() -> None:
    sampler = EXACT["numpy's as it goes"]
    with loader_with(sampler()) as loader:
        iterator = iter(loader)
        next(iterator)
        state, want = loader.state_dict(), list(iterator)
    with loader_with(sampler()) as loader:
        loader.load_state_dict(state)
        own = np.random.RandomState(11)
        got = []
        for batch in loader:
            assert np.random.rand() == own.rand()
            got.append(batch)
        assert got == want


LATE = {
    "numpy": np.random.permutation,
    "python": lambda n: random.sample(range(n), n),
    "torch": lambda n: torch.randperm(n).tolist(),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("steps", [5, 7])
@pytest.mark.parametrize("name", LATE)
def test_a_sampler_that_draws_late_goes_on_with_the_keys_of_the_undisturbed_run(
    name: str, steps: int, workers: int
) -> None:
    sampler = Draws(late(LATE[name]))
    with loader_with(sampler, num_workers=workers) as loader:
        list(loader)
        iterator = iter(loader)
        for _ in range(steps):
            next(iterator)
        state, rest = json.loads(json.dumps(loader.state_dict())), list(iterator)
    with loader_with(sampler, num_workers=workers) as loader:
        np.random.seed(99)
        random.seed(99)
        loader.load_state_dict(state)
        assert list(loader) == rest


def test_what_a_sampler_had_drawn_ahead_of_the_loop_comes_after_a_resume() -> None:
    sampler = Draws(late(np.random.permutation))
    with loader_with(sampler, num_workers=1, data_queue_size=30) as loader:
        iterator = iter(loader)
        next(iterator)
        state, rest = loader.state_dict(), list(iterator)
    with loader_with(sampler, num_workers=1, data_queue_size=30) as loader:
        np.random.seed(99)
        loader.load_state_dict(state)
        assert list(loader) == rest


def test_a_sampler_that_draws_after_the_state_was_saved_is_not_passed_over_in_silence() -> None:
    sampler = Draws(late(np.random.permutation))
    with loader_with(sampler) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
    with loader_with(sampler) as loader:
        loader.load_state_dict(state)
        with pytest.warns(RuntimeWarning, match=r"after the resume.*\(numpy\)"):
            list(loader)


def test_a_sampler_whose_generator_the_loop_draws_from_too_is_refused_after_a_resume() -> None:
    with loader_with(EXACT["numpy's as it goes"]()) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
            np.random.rand()
        state = loader.state_dict()
    with loader_with(EXACT["numpy's as it goes"]()) as loader:
        loader.load_state_dict(state)
        with pytest.raises(StateError, match="a generator or a seed of its own"):
            list(loader)


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield random.randrange(N)


def test_a_sampler_without_end_that_draws_as_it_goes_is_refused_after_a_resume() -> None:
    with loader_with(Endless()) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with loader_with(Endless()) as loader:
        loader.load_state_dict(state)
        with pytest.raises(StateError, match="as it goes, and has no end"):
            next(iter(loader))


@pytest.mark.parametrize("name", ["random", "weighted", "with a generator"])
def test_the_epochs_are_those_of_torch_through_a_state_between_them(name: str) -> None:
    sampler = EXACT[name]()
    loader_with([]).close()  # seeds
    theirs: Any = DataLoader(range(N), batch_size=4, sampler=sampler, collate_fn=list)  # type: ignore[arg-type]
    want = [list(theirs) for _ in range(4)]
    state, rest = run_to(EXACT[name](), 1, None)
    assert rest == want[1]
    with loader_with(EXACT[name]()) as loader:
        loader.load_state_dict(state)
        assert [list(loader) for _ in range(3)] == want[1:]


@pytest.mark.filterwarnings("ignore:the sampler has a length")
@pytest.mark.parametrize(
    ("name", "steps"),
    [(name, steps) for name in LOST for steps in (None, 0, 1) if (name, steps) != ("grows", 1)],
)  # of one without a length, nobody knows in mid-epoch how long it would have been
def test_a_sampler_that_counts_by_itself_is_refused_rather_than_begun_again(
    name: str, steps: int | None
) -> None:
    for epochs in (1, 2):  # never other batches in silence
        state, _ = run_to(LOST[name](), epochs, steps)
        with loader_with(LOST[name]()) as loader, pytest.raises(StateError, match="state_dict"):
            loader.load_state_dict(state)
            list(loader)


def test_a_sampler_that_the_script_brings_back_goes_on() -> None:
    state, rest = run_to(Counts(), 2, None)
    sampler = Counts()
    sampler.epoch = 2
    with loader_with(sampler) as loader:
        loader.load_state_dict(state)
        assert list(loader) == rest


def test_a_script_that_seeds_each_epoch_has_its_word() -> None:
    def epoch_of(loader: SwiftLoader, epoch: int) -> list[Any]:
        torch.manual_seed(epoch)
        return list(loader)

    with loader_with(RandomSampler(range(N))) as loader:
        epoch_of(loader, 0)
        state = loader.state_dict()
        want = epoch_of(loader, 1)
    with loader_with(RandomSampler(range(N))) as loader:
        loader.load_state_dict(state)
        assert epoch_of(loader, 1) == want


def test_a_script_that_brings_the_generator_back_has_its_word() -> None:
    with loader_with(RandomSampler(range(N))) as loader:
        list(loader)
        state = loader.state_dict()
        torch.rand(7)  # a validation, perhaps
        generator_state = torch.get_rng_state()
        want = list(loader)
    with loader_with(RandomSampler(range(N))) as loader:
        loader.load_state_dict(state)
        torch.set_rng_state(generator_state)
        assert list(loader) == want


def test_a_state_from_before_any_batch_is_a_fresh_start() -> None:
    for sampler in (Counts, lambda: RandomSampler(range(N)), lambda: list(range(N))):
        state, want = run_to(sampler(), 0, None)
        with loader_with(sampler()) as loader:
            loader.load_state_dict(state)
            assert list(loader) == want


@pytest.mark.parametrize("field", ["first", "batch", "length", "carried"])
def test_a_broken_beginning_is_named(field: str) -> None:
    state, _ = run_to(RandomSampler(range(N)), 1, None)
    for value in ("x", -1, {"torch": 3}):
        state["sampler"]["beginning"] = {**state["sampler"]["beginning"], field: value}
        with (
            loader_with(RandomSampler(range(N))) as loader,
            pytest.raises(StateError, match=rf"{field}|generators"),
        ):
            loader.load_state_dict(state)
            next(iter(loader))


@pytest.mark.parametrize("stream", [False, True])
def test_a_rank_loads_its_own_state_before_it_starts(stream: bool) -> None:
    def build() -> SwiftLoader:
        options: dict[str, Any] = {"batch_size": 4, "nb_consumer": 2, "collate_fn": list}
        if stream:
            return SwiftLoader(Counted(), num_workers=1, stream_split="workers", **options)
        return SwiftLoader(range(N), num_workers=0, sampler=range(N - 1, -1, -1), **options)

    with build() as loader:
        loader.start(1)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = list(batches)
    with build() as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert loader.state_dict() == state
        loader.start(1)
        assert list(loader) == rest
    with build() as loader:
        loader.load_state_dict(state)
        with pytest.raises(StateError, match="no state of consumer 0"):
            loader.start(0)
            list(loader)
