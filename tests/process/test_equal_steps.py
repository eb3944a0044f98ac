"""Ranks that read a stream end each epoch at the same step."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from swift_loader import SwiftLoader
from swift_loader.errors import ConfigError, EqualStepsError

ROOT = Path(__file__).parents[2]
LIMIT_S = 60


class Shards(IterableDataset[int]):
    """The shard of worker `w` of all has ``sizes[w]`` items; raises in the last if negative."""

    def __init__(self, sizes: list[int], rank: int) -> None:
        self.sizes = sizes
        self.rank = rank

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        size = self.sizes[2 * self.rank + worker % 2]
        for item in range(abs(size)):
            if item == -size - 1:
                raise KeyError("broken shard")
            yield item


def train(rank: int, port: int, kind: str) -> dict[str, Any]:
    """What one rank sees, in its own process."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    sizes = {"empty": [9, 7, 0, 0], "raises": [9, 7, 4, -2]}.get(kind, [9, 7, 4, 2])
    loader = SwiftLoader(
        Shards, {"sizes": sizes, "rank": rank}, nb_consumer=2, worker_per_consumer=2,
        equal_steps=True, timeout=3 if kind == "stays" else 20, validate=False,
    )  # fmt: skip
    steps, states = [], []
    with loader:
        for epoch in range(3):
            count = 0
            for _ in loader:
                count += 1
                state = loader.state_dict()
                states.append(state["delivered"] + len(state["ahead"]))
                if kind == "dies" and rank == 1 and count == 2:
                    os._exit(0)
                if kind == "stays" and rank == 1 and count == 2:
                    time.sleep(8)  # a training step longer than the timeout
                if kind == "leaves" and rank == 1 and count == 2:
                    return {}
                if kind == "breaks" and epoch == 0 and count == 3:
                    break
            steps.append(count)
        end = loader.state_dict()
    return {"steps": steps, "states": states, "end": [end["epoch"], end["delivered"]]}


def on_two_ranks(kind: str) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.process.test_equal_steps", str(port), kind]
    ranks = [
        subprocess.Popen([*command, str(rank)], cwd=ROOT, stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        return [json.loads(rank.communicate(timeout=LIMIT_S)[0] or "{}") for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("kind", "steps"), [("uneven", [6, 6, 6]), ("empty", [0, 0, 0]), ("breaks", [3, 6, 6])]
)
def test_ranks_with_uneven_shards_take_equal_steps(kind: str, steps: list[int]) -> None:
    for rank in on_two_ranks(kind):
        assert rank["steps"] == steps
        assert rank["states"] == [k + 1 for count in steps for k in range(count)]
        assert rank["end"] == [3, 0]


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("dies", "lost another rank"),
        ("stays", "lost another rank"),
        ("leaves", "not at the same batch|lost another rank"),
        ("raises", "rank 1: KeyError: 'broken shard'|lost another rank"),
    ],
)
def test_a_rank_that_does_not_come_is_an_error_on_the_other(kind: str, says: str) -> None:
    assert re.search(says, on_two_ranks(kind)[0]["error"])


def test_a_map_style_dataset_has_equal_steps_already() -> None:
    with pytest.raises(ConfigError, match="the plan already gives equal steps"):
        SwiftLoader.from_dataset(list(range(9)), equal_steps=True)


def test_equal_steps_need_a_rank_a_consumer() -> None:
    loader = SwiftLoader(
        Shards, {"sizes": [2, 2, 2, 2], "rank": 0}, nb_consumer=2, equal_steps=True
    )
    with loader, pytest.raises(ConfigError, match="init_process_group"):
        loader.start(0)


@pytest.mark.timeout(60)
def test_one_consumer_needs_nobody_to_agree_with() -> None:
    with SwiftLoader(Shards, {"sizes": [3, 3], "rank": 0}, equal_steps=True) as loader:
        assert len(list(loader)) == 3


if __name__ == "__main__":
    try:
        said = train(int(sys.argv[3]), int(sys.argv[1]), sys.argv[2])
    except EqualStepsError as error:
        said = {"error": str(error)}
    print(json.dumps(said))
