"""Whatever a script does with a loader, in whatever order, it gets the batches of a quiet run.

A loader without workers that nothing disturbs tells what each epoch holds. A machine of Hypothesis
begins epochs, leaves them, saves, loads, calls the data set, chooses epochs and kills workers, and
compares each batch.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch.utils.data import ConcatDataset, IterableDataset, Subset, get_worker_info

from swift_loader import Mixture, SwiftLoader
from swift_loader.errors import ClosedError

Sample = tuple[int, int, int, tuple[int, ...]]  # index, epoch it was told, draw, calls

N = 23
FAILING = (7, 16)


class Told:
    """A sample says what its data set was told, and draws."""

    def __init__(self, n: int = N, first: int = 0, draws: bool = True) -> None:
        self.n, self.first, self.draws = n, first, draws
        self.epoch = -1
        self.calls: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Sample:
        draw = random.getrandbits(30) if self.draws else 0
        return self.first + index, self.epoch, draw, self.calls

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def tell(self, value: int) -> None:
        self.calls = (*self.calls, value)


class Failing(Told):
    """Two of its samples can't be had."""

    def __getitem__(self, index: int) -> Sample:
        if index in FAILING:
            raise ValueError(index)
        return super().__getitem__(index)


class Kept(Told):
    """It may be cached: a sample is the same in every epoch."""

    set_epoch = None  # type: ignore[assignment]


class Stream(IterableDataset[Sample]):
    """The same as a stream that its workers split."""

    def __init__(self, n: int = N) -> None:
        self.n = n
        self.epoch = -1
        self.calls: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[Sample]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.n, step):
            yield index, self.epoch, random.getrandbits(30), self.calls

    set_epoch = Told.set_epoch
    tell = Told.tell


class Stateful(Stream):
    """It can say where it stands."""

    def __init__(self, n: int = N) -> None:
        super().__init__(n)
        self.at = 0

    def __iter__(self) -> Iterator[Sample]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        at, self.at = self.at, 0
        for index in range(first + at * step, self.n, step):
            at += 1
            self.now = at
            yield index, self.epoch, random.getrandbits(30), self.calls
        self.now = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": getattr(self, "now", 0)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def listed(samples: list[Sample]) -> list[Sample]:
    return samples


@dataclass(frozen=True)
class Kind:
    """A data set, with what decides the order of its batches."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def made(self, draws: bool = True, **options: Any) -> SwiftLoader[Any]:
        both = {"batch_size": 3, "collate_fn": listed, "seed": 5, "validate": False}
        both |= self.options | options
        if self.name == "mixture":
            parts = {"few": Told(9, 100, draws), "many": Subset(Told(20, 200, draws), range(14))}
            return SwiftLoader(Mixture(parts, weights={"few": 1, "many": 2}), **both)
        if self.name == "wrapped":
            parts = [Told(9, 100, draws), Subset(Told(20, 200, draws), range(14))]
            return SwiftLoader(ConcatDataset(parts), **both)
        if self.name in _MAPS:
            return SwiftLoader(_MAPS[self.name](draws=draws and self.name != "kept"), **both)
        return SwiftLoader({"stream": Stream, "stateful": Stateful}[self.name](), **both)


_MAPS = {"map": Told, "failing": Failing, "kept": Kept}
KINDS = {
    "plain": Kind("map"),
    "shuffled": Kind("map", {"shuffle": True}),
    "full shuffle": Kind("map", {"shuffle": True, "nearby_shuffle": None}),
    "dropping": Kind("map", {"shuffle": True, "drop_last": True}),
    "wrapped": Kind("wrapped", {"shuffle": True}),
    "mixture": Kind("mixture", {"shuffle": True}),
    "failing": Kind("failing", {"shuffle": True}),
    "kept": Kind("kept", {"shuffle": True, "cache": "1MB"}),
    "kept in part": Kind("kept", {"shuffle": True, "cache": 8192}),
    "stream": Kind("stream"),
    "stateful": Kind("stateful"),
}


class Script(RuleBasedStateMachine):
    """What a script may do. The model: which epoch comes next, and where in it."""

    @initialize(
        kind=st.sampled_from(sorted(KINDS)),
        method=st.sampled_from(["none", "none", "thread", "thread", "fresh"]),
        workers=st.integers(1, 3),
        prefetch_epochs=st.integers(0, 1),
        staged=st.booleans(),
    )
    def build(
        self, kind: str, method: str, workers: int, prefetch_epochs: int, staged: bool
    ) -> None:
        self.kind = KINDS[kind]
        self.fails = self.kind.name == "failing"
        self.is_stream = self.kind.name in ("stream", "stateful")
        self.workers = 0 if method == "none" else workers
        self.options: dict[str, Any] = {"worker_per_consumer": self.workers}
        self.options["prefetch_epochs"] = prefetch_epochs
        if method == "thread" and not self.is_stream:  # threads can't split one
            self.options["start_method"] = "thread"
        self.draws = "start_method" not in self.options  # threads share the generators
        self.staged = staged
        self.reference: SwiftLoader[Any] | None = None
        self.epochs: dict[int, list[list[Sample]]] = {}
        self.iterator: Iterator[list[Sample]] | None = None
        self.old: Iterator[list[Sample]] | None = None
        self.epoch, self.calls = 0, ()
        self.at: tuple[int, int, tuple[int, ...]] | None = None  # epoch, batches taken, calls
        self.rest: tuple[int, int, tuple[int, ...]] | None = None  # of a loaded state
        self.left_out = 0  # batches of the epoch at hand that came before a loaded state
        self.saved: list[tuple[str, Any]] = []
        self.built()

    def built(self) -> None:
        self.loader = self.kind.made(self.draws, **self.options)
        self.start()

    def start(self) -> None:
        self.loader.start(0, to_device=(lambda batch, device: batch) if self.staged else None)

    def of_epoch(self, epoch: int, calls: tuple[int, ...]) -> list[list[Sample]]:
        """What this epoch gives where nothing disturbs it."""
        if self.reference is None:
            workers = self.workers if self.is_stream else 0
            undisturbed = replace(self.kind, name="map") if self.fails else self.kind
            self.reference = undisturbed.made(self.draws, worker_per_consumer=workers)
        if epoch not in self.epochs:
            self.reference.set_epoch(epoch)
            self.epochs[epoch] = list(self.reference)
        return [
            [(index, told, draw, calls) for index, told, draw, _ in batch]
            for batch in self.epochs[epoch]
        ]

    # ---- rules

    @rule()
    def begin(self) -> None:
        self.old, self.iterator = self.iterator, iter(self.loader)
        if self.rest is not None and self.rest[0] == self.epoch:
            self.at, self.left_out = self.rest, self.rest[1]
        else:
            self.left_out = 0
            self.at = self.epoch, 0, self.calls
        self.rest = None
        self.epoch += 1

    @precondition(lambda self: self.iterator is not None)
    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        assert self.iterator is not None
        assert self.at is not None
        epoch, k, calls = self.at
        due = self.of_epoch(epoch, calls)[k : k + count]
        self.compare(self.iterator, due)
        self.at = epoch, k + len(due), calls

    @precondition(lambda self: self.iterator is not None)
    @rule()
    def to_the_end(self) -> None:
        assert self.iterator is not None
        assert self.at is not None
        epoch, k, calls = self.at
        self.compare(self.iterator, self.of_epoch(epoch, calls)[k:])
        assert list(self.iterator) == []
        self.iterator = self.at = None

    @rule()
    def a_whole_epoch(self) -> None:
        self.begin()
        self.to_the_end()

    @precondition(lambda self: self.iterator is not None)
    @rule()
    def let_go(self) -> None:
        """The place stays where it is: a state may still be taken."""
        self.iterator = None

    @precondition(lambda self: self.old is not None)
    @rule()
    def ask_the_one_before(self) -> None:
        assert self.old is not None
        with pytest.raises((ClosedError, StopIteration)):
            next(self.old)
        self.old = None

    @rule(value=st.integers(0, 9))
    def call(self, value: int) -> None:
        self.loader.call_dataset("tell", value)
        self.calls = (*self.calls, value)
        if self.rest is not None:  # from the next `iter` on, also where that is in mid-epoch
            self.rest = (*self.rest[:2], self.calls)

    @rule(ahead=st.integers(0, 4))
    def choose_epoch(self, ahead: int) -> None:
        self.epoch += ahead
        self.loader.set_epoch(self.epoch)

    @rule()
    def save(self) -> None:
        text = json.dumps(self.loader.state_dict())
        self.saved.append((text, self.here()))

    def compare(self, iterator: Iterator[list[Sample]], due: list[list[Sample]]) -> None:
        for place, batch in enumerate(due):
            if self.fails and any(index in FAILING for index, *_ in batch):
                with pytest.raises(ValueError, match=r"^(7|16)"):
                    next(iterator)
            else:
                got = next(iterator)
                assert got == batch, f"batch {place} of {len(due)}: {got}, not {batch}"

    def here(self) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
        """Epoch, batches taken, calls before it, all calls."""
        if self.at is not None:
            return (*self.at, self.calls)
        if self.rest is not None and self.rest[0] == self.epoch:
            return (*self.rest, self.calls)
        return self.epoch, 0, self.calls, self.calls

    def came_from(self, place: tuple[int, int, tuple[int, ...], tuple[int, ...]]) -> None:
        epoch, k, before, calls = place
        self.epoch, self.calls = epoch, calls
        self.rest = epoch, k, before
        self.iterator = self.at = None

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def load_here(self, data: st.DataObject) -> None:
        text, place = data.draw(st.sampled_from(self.saved))
        self.old, self.iterator = self.iterator, None
        self.loader.load_state_dict(json.loads(text))
        self.came_from(place)

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), workers=st.integers(1, 3), before=st.booleans())
    def load_elsewhere(self, data: st.DataObject, workers: int, before: bool) -> None:
        """A new run, with other numbers of workers where that is no matter."""
        text, place = data.draw(st.sampled_from(self.saved))
        self.loader.close()
        self.old = None
        if self.workers and not self.is_stream:
            self.options["worker_per_consumer"] = workers
        if before:
            self.loader = self.kind.made(self.draws, **self.options)
            self.loader.load_state_dict(json.loads(text))
            self.start()
        else:
            self.built()
            self.loader.load_state_dict(json.loads(text))
        self.came_from(place)

    @precondition(lambda self: self.workers and "start_method" not in self.options)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        pids = [one.pid for one in self.loader.stats().workers if one.pid is not None]
        if pids:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(data.draw(st.sampled_from(pids))).kill()

    @invariant()
    def length_is_right(self) -> None:
        if self.is_stream or not hasattr(self, "loader"):
            return
        whole = len(self.of_epoch(0, ()))
        if self.at is not None:
            assert len(self.loader) == whole - self.left_out
        elif self.rest is not None and self.rest[0] == self.epoch:
            assert len(self.loader) == whole - self.rest[1]
        else:
            assert len(self.loader) == whole

    def teardown(self) -> None:
        for loader in (getattr(self, "loader", None), getattr(self, "reference", None)):
            if loader is not None:
                loader.close()


pytestmark = [
    pytest.mark.usefixtures("shared_zygote"),
    pytest.mark.filterwarnings("ignore"),  # of the epoch that a script's own object was told
]


@pytest.mark.timeout(240)
def test_whatever_a_script_does_it_gets_what_an_undisturbed_run_gives() -> None:
    _try(derandomize=True, max_examples=30, stateful_step_count=30)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_whatever_a_script_does_at_length_it_gets_what_an_undisturbed_run_gives() -> None:
    _try(max_examples=300, stateful_step_count=50)


def _try(**how: Any) -> None:
    checks = list(HealthCheck)
    run_state_machine_as_test(
        Script, settings=settings(deadline=None, suppress_health_check=checks, **how)
    )
