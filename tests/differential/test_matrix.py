"""Options against each other, through both loaders.

The ordinary run takes so many combinations that each two values of different axes meet; all of them
run with ``-m soak``. Torch's workers are forked, and in one test spawned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.differential import samples
from tests.differential.loaders import through_ours, through_torch
from tests.differential.outcome import Outcome
from tests.differential.pairs import Setup, covering, every, name_of
from tests.process.scripts import running, wait_for

pytestmark = [
    pytest.mark.usefixtures("shared_zygote"),
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings(
        "ignore"
    ),  # of more workers than CPUs, and of epochs without a batch
]

WORKERS = {
    "local": {},
    "threads": {"threads_per_worker": 2},
    "endpoint": {},
}
MAP_STYLE = {
    "batch_size": [1, 4, 23, 40],
    "drop_last": [False, True],
    "workers": [1, 2, 3],
    "collate": ["default", "listed"],
    "kind": list(WORKERS),
    "start_method": ["fresh", "fork"],
    "staged": [False, True],
    "resumed_after": [None, 0, 2],
    "made": ["written out", "from_dataloader"],
    "ranks": [1, 2, 3],
}
STREAMS = {
    "stream": ["Split", "Sized", "Whole"],
    "batch_size": [1, 4, None],
    "drop_last": [False, True],
    "workers": [1, 2, 3],
    "collate": ["default", "listed"],
    "start_method": ["fresh", "fork"],
    "staged": [False, True],
    "resumed_after": [None, 2],
    "made": ["written out", "from_dataloader"],
}


def map_style_is_valid(setup: Setup) -> bool:
    """Endpoints stand on other machines, so nothing is forked for them; two by name is enough."""
    if setup["kind"] == "endpoint":
        return bool(setup["start_method"] == "fresh" and setup["made"] == "written out")
    return True


def stream_is_valid(setup: Setup) -> bool:
    """What torch refuses, and what is a known difference, has tests of its own."""
    if setup["batch_size"] is None and (setup["drop_last"] or setup["collate"] == "listed"):
        return False
    return not (setup["stream"] == "Whole" and setup["workers"] > 1)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Any]:
    """An endpoint of this machine, with two workers."""
    pytest.importorskip("zmq")
    from tests.process.remote.endpoints import RunningEndpoint

    with RunningEndpoint(workers=2) as running:
        yield running


CHUNKS = 24
some_map_styles = pytest.mark.parametrize(
    "setup", covering(every(MAP_STYLE, map_style_is_valid)), ids=name_of
)
some_streams = pytest.mark.parametrize(
    "setup", covering(every(STREAMS, stream_is_valid)), ids=name_of
)


def arguments(setup: Setup) -> dict[str, Any]:
    """What both loaders get."""
    both = {name: setup[name] for name in ("batch_size", "drop_last", "workers")}
    if setup["collate"] == "listed":
        both["collate_fn"] = samples.listed
    return both


@cache
def by_torch(samples_of: str, ranks: int = 1, **both: Any) -> list[Outcome]:
    """What torch gives, once for all the setups that differ in our options alone."""
    return through_torch(getattr(samples, samples_of)(kind="int"), ranks=ranks, **both)


def own(setup: Setup) -> dict[str, Any]:
    """What only this loader gets."""
    names = ("staged", "resumed_after", "made", "start_method")
    return {name: setup[name] for name in names}


@some_map_styles
def test_map_style(setup: Setup, request: pytest.FixtureRequest) -> None:
    compare_map_style(setup, request)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_map_style_in_whole(chunk: int, request: pytest.FixtureRequest) -> None:
    for setup in every(MAP_STYLE, map_style_is_valid)[chunk::CHUNKS]:
        compare_map_style(setup, request)


def compare_map_style(setup: Setup, request: pytest.FixtureRequest) -> None:
    """Fails where the two loaders differ."""
    dataset = samples.MapStyle("int")
    both, ranks = arguments(setup), setup["ranks"]
    ours = {**both, **own(setup), **WORKERS[setup["kind"]]}
    if setup["kind"] == "endpoint":
        address = request.getfixturevalue("endpoint").address
        ours.update(workers=0, remote_workers=[address])
    if ranks > 1 and not setup["drop_last"]:
        ours["tail"] = "pad"  # as `DistributedSampler` does
    theirs = by_torch("MapStyle", ranks, **both)
    found = through_ours(dataset, ranks=ranks, **ours)
    if ranks == 1:
        assert found == theirs, setup
        return
    assert [one.length for one in found] == [one.length for one in theirs]
    for one, other in zip(found, theirs, strict=True):
        assert [len(items(b)) for b in one.batches] == [len(items(b)) for b in other.batches]
    if not setup["drop_last"]:
        assert all_items(found) == all_items(theirs)


@some_streams
def test_stream(setup: Setup) -> None:
    compare_stream(setup)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_stream_in_whole(chunk: int) -> None:
    for setup in every(STREAMS, stream_is_valid)[chunk::CHUNKS]:
        compare_stream(setup)


def compare_stream(setup: Setup) -> None:
    """Fails where the two loaders differ."""
    dataset = getattr(samples, setup["stream"])(kind="int")
    both = arguments(setup)
    theirs = by_torch(setup["stream"], **both)
    assert through_ours(dataset, **both, **own(setup)) == theirs, setup


SPAWNED = """
from tests.differential import samples
from tests.differential.loaders import through_ours, through_torch

if __name__ == "__main__":
    for dataset in (samples.MapStyle("dict"), samples.Split(kind="pair")):
        options = {"batch_size": 5, "workers": 2}
        spawned = through_torch(dataset, context="spawn", **options)
        assert spawned == through_torch(dataset, **options)
        assert spawned == through_ours(dataset, start_method="main", **options)
    print("the same")
"""


def test_torchs_spawned_workers_give_what_its_forked_ones_and_ours_do(tmp_path: Path) -> None:
    # A script of its own: "main" needs one, and the process of a test may have none.
    with running(SPAWNED, tmp_path) as process:
        wait_for(process, "the same")
        assert process.wait(60) == 0


def test_a_stream_that_does_not_split_itself_comes_once_here_and_from_each_worker_with_torch() -> (
    None
):
    dataset = samples.Whole(kind="int")
    options = {"batch_size": 4, "workers": 3, "collate_fn": samples.listed}
    once = Counter(range(23))
    assert all_items(through_ours(dataset, **options)) == once
    assert all_items(through_torch(dataset, **options)) == once + once + once


def test_random_draws_do_not_depend_on_the_number_of_workers_here_and_do_with_torch() -> None:
    options = {"batch_size": 4, "collate_fn": samples.listed}
    for through, same in ((through_ours, True), (through_torch, False)):
        torch.manual_seed(5)
        one = through(samples.Draws(), workers=1, **options)
        torch.manual_seed(5)
        assert (through(samples.Draws(), workers=3, **options) == one) is same


def items(batch: Any) -> list[int]:
    """The samples of a frozen batch of ints."""
    if batch[0] == "list":
        return [int(one[1]) for one in batch[1]]
    listed: list[int] = np.frombuffer(batch[-1], np.int64).tolist()
    return listed


def all_items(outcomes: list[Outcome]) -> Counter[int]:
    """The samples of all ranks, counted."""
    return Counter(i for one in outcomes for batch in one.batches for i in items(batch))
