"""Whatever a script does with a loader of a sampler, the sampler is asked as torch's loader asks.

Beside the loader's sampler there is another one, which is iterated once where an epoch begins. A
machine of Hypothesis begins epochs, leaves them, saves and loads, and compares.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from swift_loader import SwiftLoader

pytestmark = [pytest.mark.usefixtures("shared_zygote"), pytest.mark.filterwarnings("ignore")]

N = 23


class Numbers:
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: Any) -> Any:
        return index


class OfNumpy(Sampler[int]):
    """It draws as it goes."""

    def __init__(self, seed: int, n: int) -> None:
        self.n, self.generator = n, np.random.default_rng(seed)

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.n):
            yield int(self.generator.integers(self.n))

    def __len__(self) -> int:
        return self.n


class OfPython(Sampler[int]):
    def __init__(self, seed: int, n: int) -> None:
        self.n, self.generator = n, random.Random(seed)

    def __iter__(self) -> Iterator[int]:
        return iter(self.generator.sample(range(self.n), self.n))

    def __len__(self) -> int:
        return self.n


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SAMPLERS: dict[str, Callable[[int, int], Sampler[Any]]] = {
    "random": lambda seed, n: RandomSampler(range(n), generator=seeded(seed)),
    "replacing": lambda seed, n: RandomSampler(
        range(n), replacement=True, num_samples=n, generator=seeded(seed)
    ),
    "weighted": lambda seed, n: WeightedRandomSampler(
        [1.0] * 5 + [2.0] * (n - 5), n, generator=seeded(seed)
    ),
    "subset": lambda seed, n: SubsetRandomSampler(range(3, n), generator=seeded(seed)),
    "numpy's": OfNumpy,
    "python's": OfPython,
}


def left_of(sampler: Any) -> Any:
    """The state of what it draws from."""
    generator = sampler.generator
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state


def set_back(sampler: Any, state: Any) -> None:
    if isinstance(sampler.generator, torch.Generator):
        sampler.generator.set_state(state)
    elif isinstance(sampler.generator, random.Random):
        sampler.generator.setstate(state)
    else:
        sampler.generator.bit_generator.state = state


class Script(RuleBasedStateMachine):
    @initialize(
        kind=st.sampled_from(sorted(SAMPLERS)),
        method=st.sampled_from(["none", "none", "thread", "thread", "fresh"]),
        prefetch_epochs=st.integers(0, 1),
        batched=st.booleans(),
    )
    def build(self, kind: str, method: str, prefetch_epochs: int, batched: bool) -> None:
        self.kind, self.batched = SAMPLERS[kind], batched
        self.options: dict[str, Any] = {
            "num_workers": 0 if method == "none" else 2,
            "prefetch_epochs": prefetch_epochs,
            "validate": False,
            "collate_fn": list,
        }
        if method == "thread":
            self.options["start_method"] = "thread"
        self.asks_ahead = 2 * self.options["num_workers"]
        self.beside = self.kind(1, N)
        self.asked: Iterator[list[int]] = iter(())  # as torch's loader does it
        self.seeds = 1
        self.loader = self.begun(1)
        self.iterator: Iterator[list[int]] | None = None
        self.at: tuple[Any, list[list[int]], int] | None = None  # before the epoch, it, and taken
        self.rest = 0
        self.saved: list[tuple[str, Any]] = []

    def begun(self, seed: int) -> SwiftLoader[Any]:
        sampler = self.kind(seed, N)
        if self.batched:
            batches = BatchSampler(sampler, 3, drop_last=False)
            return SwiftLoader(Numbers(), batch_sampler=batches, **self.options)
        return SwiftLoader(Numbers(), sampler=sampler, batch_size=3, **self.options)

    def ask(self, count: int) -> None:
        deque(islice(self.asked, count), 0)

    @rule()
    def begin(self) -> None:
        self.iterator = iter(self.loader)
        before = left_of(self.beside)
        batches = list(BatchSampler(self.beside, 3, drop_last=False))
        set_back(self.beside, before)
        self.at, self.rest = (before, batches, self.rest), 0
        self.asked = iter(BatchSampler(self.beside, 3, drop_last=False))
        self.ask(self.at[2] + self.asks_ahead)

    @precondition(lambda self: self.iterator is not None)
    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        assert self.iterator is not None
        assert self.at is not None
        before, batches, k = self.at
        assert list(islice(self.iterator, count)) == batches[k : k + count]
        self.ask(count)
        if k + count > len(batches):  # the end was asked for
            self.iterator = self.at = None
        else:
            self.at = before, batches, k + count

    @precondition(lambda self: self.iterator is not None)
    @rule()
    def to_the_end(self) -> None:
        self.take(N * 3)

    @rule()
    def a_whole_epoch(self) -> None:
        self.begin()
        self.to_the_end()

    @rule()
    def save(self) -> None:
        text = json.dumps(self.loader.state_dict())
        if self.at is not None:
            self.saved.append((text, (self.at[0], self.at[2])))
        else:
            self.saved.append((text, (left_of(self.beside), self.rest)))

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), here=st.booleans())
    def load(self, data: st.DataObject, here: bool) -> None:
        text, (state, k) = data.draw(st.sampled_from(self.saved))
        if not here:
            self.loader.close()
            self.seeds += 1
            self.loader = self.begun(self.seeds)
        self.loader.load_state_dict(json.loads(text))
        set_back(self.beside, state)
        self.rest = k
        self.iterator = self.at = None

    def teardown(self) -> None:
        if hasattr(self, "loader"):
            self.loader.close()


@pytest.mark.timeout(240)
def test_whatever_a_script_does_the_sampler_is_asked_as_by_torch() -> None:
    _try(derandomize=True, max_examples=30, stateful_step_count=30)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_whatever_a_script_does_at_length_the_sampler_is_asked_as_by_torch() -> None:
    _try(max_examples=300, stateful_step_count=50)


def _try(**how: Any) -> None:
    checks = list(HealthCheck)
    run_state_machine_as_test(
        Script, settings=settings(deadline=None, suppress_health_check=checks, **how)
    )


LEFT_AFTER = ((0,), (0, 0), (1,), (5, 7), (60, 2), (95, 3), (97,), (99,), (100,), (30, 30))


@pytest.mark.parametrize("kind", [name for name in SAMPLERS if name != "subset"])
@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "prefetch_factor": 3}])
def test_epochs_that_are_left_early_are_followed_by_those_of_torch(
    kind: str, options: dict[str, Any]
) -> None:
    """With workers, only some of the places: torch takes long to start its own for each epoch."""
    places = LEFT_AFTER if not options["num_workers"] else LEFT_AFTER[1::3]
    for left_after in places:
        assert left_early(SwiftLoader, kind, left_after, **options) == left_early(
            DataLoader, kind, left_after, **options
        )


def left_early(
    loader: Callable[..., Any], kind: str, left_after: tuple[int, ...], **options: Any
) -> list[Any]:
    """What these numbers of batches are, and the first one of the epoch after them."""
    sampler = SAMPLERS[kind](1, 300)
    made = loader(range(300), sampler=sampler, batch_size=3, collate_fn=list, **options)
    found = []
    for count in (*left_after, 1):
        iterator = iter(made)
        found.append(list(islice(iterator, count)))
    del iterator
    return found


def test_a_seed_that_the_script_gives_after_an_epoch_left_early_counts() -> None:
    for loader in (SwiftLoader, DataLoader):
        generator = seeded(1)
        sampler = RandomSampler(range(N), generator=generator)
        made: Any = loader(range(N), sampler=sampler, batch_size=3, num_workers=1, collate_fn=list)
        next(iter(made))
        generator.manual_seed(7)
        assert next(iter(made)) == list(RandomSampler(range(N), generator=seeded(7)))[:3]


class OfGlobal(Sampler[int]):
    def __init__(self, draw: Callable[[int], Any]) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        for _ in range(N):
            yield int(self.draw(N))

    def __len__(self) -> int:
        return N


@pytest.mark.filterwarnings("error")
def test_draws_from_a_global_generator_as_it_goes_are_warned_of_once() -> None:
    draws: list[Callable[[int], Any]] = [np.random.randint, random.randrange]
    for draw in draws:
        with SwiftLoader(range(N), sampler=OfGlobal(draw), batch_size=3, num_workers=1) as loader:
            with pytest.warns(RuntimeWarning, match="a global generator .* as it goes"):
                list(loader)
            list(loader)
        with SwiftLoader(range(N), sampler=OfGlobal(draw), batch_size=3, num_workers=0) as loader:
            list(loader)  # asked when its batch is wanted, as by torch's
