"""Streams of shards with real workers: resumed with other numbers, killed, in equal steps."""

from __future__ import annotations

import os
import random
import re
import signal
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from swift_loader import ConfigError, Shards, SwiftLoader
from tests.process.test_crashes import workers_of

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(110)]

SIZES = [9, 0, 14, 3, 7, 11, 5, 8, 1, 13, 6]
ALL = Counter(100 * shard + item for shard, size in enumerate(SIZES) for item in range(size))


def seeking(shard: int, start: int = 0) -> Iterator[int]:
    return iter(range(100 * shard + start, 100 * shard + SIZES[shard]))


def through(shard: int) -> Iterator[int]:
    return seeking(shard)


def loader_of(
    consumers: int, workers: int, buffer: int = 6, opened: Any = seeking, **options: Any
) -> SwiftLoader:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer shards than workers
        return SwiftLoader(
            Shards(range(len(SIZES)), opened, buffer=buffer),
            **{"batch_size": 2, "shuffle": True, "validate": False, **options},
            nb_consumer=consumers,
            worker_per_consumer=workers,
        )


def items(batch: Any) -> list[int]:
    found: list[int] = batch.tolist()
    return found


def go_on(
    states: Any, consumers: int, workers: int, steps: list[int], kill: bool = False, **options: Any
) -> tuple[Counter[int], list[Any]]:
    """All consumers take so many batches; what they saw, and their states."""
    seen: Counter[int] = Counter()
    new = []
    for consumer in range(consumers):
        with loader_of(consumers, workers, **options) as loader:
            if states is not None:
                loader.load_state_dict(states)
            loader.start(consumer)
            iterator = iter(loader)
            over = loader.state_dict()["epoch"] > 0  # for this consumer; the others go on with it
            for step in range(0 if over else steps[consumer]):
                if kill and step == 1:
                    os.kill(workers_of(loader)[0].pid, signal.SIGKILL)
                batch = next(iterator, None)
                if batch is None:
                    break
                seen.update(items(batch))
            new.append(loader.state_dict())
            del iterator
    return seen, new


@pytest.mark.parametrize("opened", [seeking, through])
def test_stopped_on_3_by_2_it_goes_on_on_2_by_3(opened: Any) -> None:
    first, states = go_on(None, 3, 2, [3, 1, 2], opened=opened)
    second, states = go_on(states, 2, 3, [2, 4], opened=opened, kill=True)
    third, _ = go_on(states, 1, 1, [1000], opened=opened)
    assert first + second + third == ALL


def test_killed_workers_cost_no_item_and_repeat_none() -> None:
    with loader_of(1, 2) as loader:
        whole = [items(batch) for batch in loader]
    with loader_of(1, 2, data_queue_size=2) as loader:
        iterator = iter(loader)
        got = []
        for step, batch in enumerate(iterator):
            got.append(items(batch))
            if step in (3, 11):
                os.kill(random.Random(step).choice(workers_of(loader)).pid, signal.SIGKILL)
    assert got == whole


def test_the_rest_equals_that_of_the_undisturbed_run() -> None:
    with loader_of(1, 2) as loader:
        epochs = [[items(batch) for batch in loader] for _ in range(2)]
    assert Counter(item for batch in epochs[0] for item in batch) == ALL
    assert epochs[0] != epochs[1]
    with loader_of(1, 2) as loader:
        iterator = iter(loader)
        first = [items(batch) for batch in islice(iterator, 7)]
        state = loader.state_dict()
        del iterator
    with loader_of(1, 2) as loader:
        loader.load_state_dict(state)
        rest = [items(batch) for batch in loader]
        after = [items(batch) for batch in loader]
    assert first + rest == epochs[0]
    assert after == epochs[1]


def test_an_epoch_that_has_ended_is_followed_by_the_next() -> None:
    with loader_of(1, 2) as loader:
        list(loader)
        state = loader.state_dict()
        second = [items(batch) for batch in loader]
    with loader_of(2, 1) as loader:
        loader.load_state_dict(state)
        loader.start(0)
        assert loader.state_dict()["epoch"] == 1
    with loader_of(1, 2) as loader:
        loader.load_state_dict(state)
        assert [items(batch) for batch in loader] == second


def test_without_workers_it_is_the_same() -> None:
    with loader_of(1, 0) as alone, loader_of(1, 1) as one:
        assert [items(batch) for batch in alone] == [items(batch) for batch in one]


@pytest.mark.parametrize(("workers", "role"), [(0, "consumer-0"), (1, "worker-0-0")])
def test_the_log_says_that_a_reader_was_read_through(
    workers: int, role: str, tmp_path: Path
) -> None:
    with loader_of(1, workers, opened=through) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        del iterator
    with loader_of(1, workers, opened=through, logger=str(tmp_path / "x-")) as loader:
        loader.load_state_dict(state)
        next(iter(loader))
    log = (tmp_path / f"x-{role}.log").read_text()
    assert re.search("shard [0-9]+ was read through to item [0-9]+ in .* can't seek", log)


def test_without_shuffle_it_is_as_torch_has_it() -> None:
    with loader_of(1, 2, shuffle=False) as loader:
        ours = [items(batch) for batch in loader]
    stream = Shards(range(len(SIZES)), seeking)
    theirs = [items(batch) for batch in DataLoader(stream, 2, num_workers=2)]
    assert sorted(ours) == sorted(theirs)


def test_too_few_shards_are_said() -> None:
    with pytest.warns(UserWarning, match="there are 3 shards for 2 consumers with 2 workers"):
        with SwiftLoader(Shards(range(3), seeking), nb_consumer=2, worker_per_consumer=2) as one:
            one.start(0)


def test_what_are_no_shards_or_items_is_said() -> None:
    with pytest.raises(ConfigError, match="shards=3: give a list"):
        Shards(3, seeking)
    silent = Shards([7], lambda shard: None)
    with SwiftLoader(silent, num_workers=0, validate=False) as loader:
        with pytest.raises(TypeError, match="gave None for the shard 7: have it yield"):
            next(iter(loader))


def test_workers_elsewhere_are_refused() -> None:
    with pytest.raises(ConfigError, match="belong to local workers"):
        with loader_of(1, 1, remote_workers=["tcp://127.0.0.1:1"], remote_key=False) as loader:
            loader.start(0)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(50))
def test_random_stops_numbers_and_kills(seed: int) -> None:
    draws = random.Random(seed)
    buffer = draws.choice([0, 3, 40])
    opened = draws.choice([seeking, through])
    seen: Counter[int] = Counter()
    states: Any = None
    for _ in range(draws.randint(1, 4)):
        consumers, workers = draws.randint(1, 3), draws.randint(1, 3)
        steps = [draws.randint(0, 8) for _ in range(consumers)]
        got, states = go_on(
            states, consumers, workers, steps, draws.random() < 0.5, buffer=buffer, opened=opened
        )
        seen += got
    got, _ = go_on(states, 2, 2, [1000] * 2, buffer=buffer, opened=opened)
    assert seen + got == ALL
