"""Options against each other, through both loaders: the set-ups of `setups.py`.

The ordinary run takes so many combinations that each two values of different axes meet (samplers:
each value occurs). All of them run with ``-m soak``. Torch's workers are forked, and in one test
spawned.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.differential import samples
from tests.differential.loaders import through_ours, through_torch
from tests.differential.pairs import Setup, covering, name_of
from tests.differential.setups import MATRICES, all_items
from tests.process.scripts import ROOT, environment

pytestmark = [
    pytest.mark.usefixtures("shared_zygote"),
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings(
        "ignore"
    ),  # of more workers than CPUs, and of epochs without a batch
]

CHUNKS = 24
TOGETHER = {"map style": 2, "streams": 2, "samplers": 1}
SOME = [
    (name, one)
    for name, matrix in MATRICES.items()
    for one in covering(matrix.setups(), TOGETHER[name])
]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of an endpoint on this machine."""
    pytest.importorskip("zmq")
    from tests.process.remote.endpoints import RunningEndpoint

    with RunningEndpoint(workers=2) as running:
        yield running.address


def of_script(setup: Setup) -> bool:
    return bool(setup["start_method"] == "main")


@pytest.mark.parametrize(
    ("name", "setup"),
    [one for one in SOME if not of_script(one[1])],
    ids=lambda one: one if isinstance(one, str) else name_of(one),
)
def test_both_loaders_give_the_same(
    name: str, setup: Setup, request: pytest.FixtureRequest
) -> None:
    address = request.getfixturevalue("endpoint") if setup["kind"] == "endpoint" else ""
    MATRICES[name].compare(setup, address)


def test_both_loaders_give_the_same_in_a_script_that_workers_import() -> None:
    some = [one for one in SOME if of_script(one[1])]
    compare_in_a_script(some[::2], spawned=True)  # each takes seconds; all are in the long form


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("name", MATRICES)
def test_both_loaders_give_the_same_in_every_set_up(name: str, chunk: int, endpoint: str) -> None:
    matrix = MATRICES[name]
    setups = matrix.setups()[chunk::CHUNKS]
    for setup in setups:
        if not of_script(setup):
            matrix.compare(setup, endpoint)
    compare_in_a_script([(name, one) for one in setups if of_script(one)])


def compare_in_a_script(setups: list[tuple[str, Setup]], spawned: bool = False) -> None:
    """Fails with what a script says that compares these."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.differential.setups"],
        input=json.dumps({"setups": setups, "spawned": spawned}),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert ended.returncode == 0, ended.stderr


def test_a_stream_that_does_not_split_itself_comes_once_here_and_from_each_worker_with_torch() -> (
    None
):
    dataset = samples.Whole(kind="int")
    options: dict[str, Any] = {"batch_size": 4, "workers": 3, "collate_fn": samples.listed}
    once = Counter(range(23))
    assert all_items(through_ours(dataset, **options)) == once
    assert all_items(through_torch(dataset, **options)) == once + once + once


def test_random_draws_do_not_depend_on_the_number_of_workers_here_and_do_with_torch() -> None:
    options: dict[str, Any] = {"batch_size": 4, "collate_fn": samples.listed}
    for through, same in ((through_ours, True), (through_torch, False)):
        torch.manual_seed(5)
        one = through(samples.Draws(), workers=1, **options)
        torch.manual_seed(5)
        assert (through(samples.Draws(), workers=3, **options) == one) is same
