"""A line between a training and an endpoint that does harm: the batches, or a plain error."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zmq")

from loguru import logger

from swift_loader import SwiftLoader
from swift_loader.errors import LoaderError, WorkerDiedError
from swift_loader.remote.keys import Keys
from tests import datasets
from tests.chaos.relays import FAULTS, Fault
from tests.chaos.seeds import rounds
from tests.chaos.test_kills import Progress, within_s
from tests.conformance import indices_of, plan_of
from tests.process.remote.endpoints import RunningEndpoint
from tests.process.remote.lines import relay

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.filterwarnings("ignore")]

TIMEOUT_S = 3.0
CASES = list(product(FAULTS, ["key", "none"], ["first bytes", "middle"]))


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningEndpoint]]:
    """One with a key and one without, for all tests: what one training meets harms no other."""
    key: Path = tmp_path_factory.mktemp("keys") / "key"
    Keys.generate().write(key)
    with RunningEndpoint(2, key) as secured, RunningEndpoint(2) as open_:
        yield {"key": secured, "none": open_}


def loader_of(address: str, key: Path | None, **options: Any) -> SwiftLoader:
    return SwiftLoader(
        datasets.Numbers,
        {"n": 300},
        **{
            "batch_size": 2,
            "shuffle": True,
            "worker_per_consumer": 0,
            "remote_workers": [address],
            "remote_key": key,
            "remote_timeout": TIMEOUT_S,
            "timeout": 30.0,
            "seed": 1,
            "validate": False,
            **options,
        },
    )


def suffer(
    endpoints: dict[str, RunningEndpoint], case: tuple[str, str, str], seed: int
) -> Counter[str]:
    """One training through a line that does harm, beside one that it must not disturb."""
    kind, with_key, where = case
    endpoint = endpoints[with_key]
    fault = Fault(kind, seed)
    progress = Progress()
    what: Counter[str] = Counter()
    with (
        relay(endpoint.port) as line,
        loader_of(endpoint.address, endpoint.key) as beside,
        loader_of(line.address, endpoint.key) as loader,
    ):
        beside.start(0)
        plan = plan_of(beside)
        want = [[plan.batch(epoch, 0, k).tolist() for k in range(150)] for epoch in range(3)]
        others = (indices_of(batch) for _ in range(3) for batch in beside)
        if where == "first bytes":
            fault.begin(line, random.Random(seed).randrange(400))
        try:
            for epoch in range(3):
                got = []
                for k, batch in enumerate(loader):
                    got.append(indices_of(batch))
                    progress()
                    assert next(others) == want[epoch][k], "the other party"
                    if epoch == 0 and k == 20 and where == "middle":
                        fault.begin(line, random.Random(seed).randrange(6000))
                assert got == want[epoch], (case, epoch)
            what["whole"] += 1
        except LoaderError as error:
            progress()
            what[type(error).__name__] += 1
            print(case, str(error)[:300])
        assert progress.longest_s < within_s() + TIMEOUT_S, (case, progress.longest_s)
        left = list(others)
        assert left == [one for epoch in want for one in epoch][-len(left) :] or not left
        fault.end()
    assert endpoint.process.poll() is None
    what["faults"] += fault.count
    return what


@pytest.mark.parametrize("case", random.Random(4).sample(CASES, 5), ids=", ".join)
def test_line_that_does_harm_costs_no_batch(
    case: tuple[str, str, str], endpoints: dict[str, RunningEndpoint]
) -> None:
    suffer(endpoints, case, seed=1)


def test_bytes_of_the_greeting_that_are_lost_cost_no_batch(
    endpoints: dict[str, RunningEndpoint],
) -> None:
    """ZeroMQ takes the endpoint for something else, says so, and does not try again."""
    assert suffer(endpoints, ("drop", "none", "first bytes"), seed=2)["whole"]


def test_endpoint_that_nothing_reaches_any_more_is_left(
    endpoints: dict[str, RunningEndpoint],
) -> None:
    """It still sends signs of life, and hangs up itself only after ten seconds."""
    told: list[str] = []
    logger.enable("swift_loader")
    sink = logger.add(told.append, format="{message}")
    try:
        with (
            relay(endpoints["none"].port) as line,
            loader_of(line.address, None) as loader,
            pytest.raises(WorkerDiedError, match="no worker is left"),
        ):
            for _ in range(100):  # on a busy machine all of an epoch may be asked for at once
                for k, _ in enumerate(loader):
                    if k == 20:
                        line.down = lambda _: b""
    finally:
        logger.remove(sink)
        logger.disable("swift_loader")
    assert any("does not answer any more" in one for one in told), told


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", CASES, ids=", ".join)
def test_lines_for_long(case: tuple[str, str, str], endpoints: dict[str, RunningEndpoint]) -> None:
    what: Counter[str] = Counter()
    for seed in rounds(6):
        what += suffer(endpoints, case, seed)
    print(what)
