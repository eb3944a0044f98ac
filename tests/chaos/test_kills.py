"""Workers, the process that they are forked from, endpoints: killed, stopped, struck by faults."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import pytest

from swift_loader.errors import LoaderError
from tests.chaos.hits import ROLES, hitting
from tests.chaos.seeds import rounds
from tests.chaos.setups import Setup, batches_of, every, loader_of, undisturbed

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.filterwarnings("ignore")]

WITHIN_S = 10.0  # a batch or an error
LOAD_S = 20.0  # more, where other tests have the CPUs


class Progress:
    """Notes the longest wait for a batch, and breaks off an epoch now and then."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._at_s = time.monotonic()

    def __call__(self) -> None:
        now_s = time.monotonic()
        self.longest_s = max(self.longest_s, now_s - self._at_s)
        self._at_s = now_s


def endure(setup: Setup, role: str, seed: int, nb_hits: int, **options: Any) -> Counter[str]:
    """Epochs until all hits were made; compares each. Returns what happened, by kind."""
    want = undisturbed(setup)
    what: Counter[str] = Counter()
    with hitting(ROLES[role], seed, nb_hits) as hits:
        while not hits.over:
            progress = Progress()
            try:
                with loader_of(setup, **options) as loader:
                    for epoch in range(3):
                        assert batches_of(setup, loader, progress) == want[epoch], (setup, epoch)
                        progress()
                        what["epochs"] += 1
                    what["restarts"] += loader.stats().restarts
            except LoaderError as error:
                progress()
                what[type(error).__name__] += 1
                print(type(error).__name__, str(error)[:300])
            assert progress.longest_s < WITHIN_S + LOAD_S, (setup, progress.longest_s)
    what.update({f"hit: {how}": count for how, count in hits.done.items()})
    return what


def some(seed: int, place: str) -> Setup:
    """One of them."""
    return random.Random(seed).choice([setup for setup in every() if setup.place == place])


SHORT = [
    Setup("map", "plain"),
    Setup("map", "staged", in_order=False),
    Setup("stream", "decoder", tail="drop"),
    Setup("sampled", "threads"),
]


@pytest.mark.parametrize("setup", SHORT, ids=lambda setup: setup.name)
def test_workers_that_are_hit_cost_no_batch(setup: Setup) -> None:
    what = endure(setup, "workers", seed=len(setup.name), nb_hits=12)
    assert what["epochs"] > 0


def test_processes_to_fork_from_that_are_hit_cost_no_batch() -> None:
    endure(Setup(), "zygotes", seed=1, nb_hits=2)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("role", "nb_rounds"), [("workers", 44), ("zygotes", 44)])
def test_local_kills_for_long(role: str, nb_rounds: int) -> None:
    setups = [setup for setup in every() if setup.place == "local"]
    what: Counter[str] = Counter()
    for seed in rounds(nb_rounds):
        what += endure(setups[seed % len(setups)], role, seed, 20 if role == "workers" else 5)
    print(what)
