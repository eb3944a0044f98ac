"""What the ranks say together of a stream, before any worker runs."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from swift_loader.loader.who_splits import Decision, Look
from swift_loader.worker.likeness import likeness_of


class Plain(IterableDataset[int]):
    def __init__(self, numbers: Any = range(40)) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


class Unlike(Plain):
    """Holds what differs from process to process by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.draws = threading.Lock(), random.Random()
        self.generator, self.rng = torch.Generator(), np.random.default_rng()
        self.generator.seed()
        self.file = open(os.devnull)  # noqa: SIM115


def _rank_of_variables() -> tuple[int, int]:
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class AsksInAFunction(Plain):
    def __iter__(self) -> Iterator[int]:
        place, size = _rank_of_variables()
        return iter(self.numbers[place::size])


class OfAnother(AsksInAFunction):
    """Only its base speaks of ranks."""


class IsGivenIt(Plain):
    def __init__(self, rank: int) -> None:
        super().__init__(range(rank, 40, 2))


def give_part(of: int, parts: int, worker_id: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.numbers = range(of, 40, parts)


def looks(*streams: Any) -> list[Look]:
    return [Look.at(stream, {}, None) for stream in streams]


def decision(*streams: Any) -> Decision:
    found = looks(*streams)
    (decided, *others) = (look.decided(len(found), found) for look in found)
    assert all(other == decided for other in others)
    return decided


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")


def test_plain_stream_is_left_to_the_workers() -> None:
    assert decision(Plain(), Plain()) == Decision("auto")
    assert decision(Unlike(), Unlike()) == Decision("auto")
    words = [f"word {i}" for i in range(100)]
    backwards = words[::-1]
    assert decision(Plain(set(words)), Plain(set(backwards))) == Decision("auto")


@pytest.mark.parametrize(
    "numbers",
    [
        range(40),
        list(range(5000)),
        [(str(i), i) for i in range(5000)],
        [{"at": np.arange(i, i + 2)} for i in range(5000)],
        np.arange(5000),
        np.arange(6 << 20).reshape(-1, 2),
        torch.arange(5000),
        {"parts": [[i] for i in range(10)]},
    ],
    ids=lambda numbers: type(numbers).__name__,
)
def test_stream_that_was_cut_by_rank_splits_itself(numbers: Any) -> None:
    def cut(of: int) -> Any:
        return {"parts": numbers["parts"][of::2]} if type(numbers) is dict else numbers[of::2]

    assert decision(Plain(cut(0)), Plain(cut(0))).by == "auto"
    found = decision(Plain(cut(0)), Plain(cut(1)))
    assert (found.by, found.in_doubt) == ("workers", True)
    assert "not the same on every rank" in found.why


def test_generator_is_compared_by_its_variables() -> None:
    def numbers(of: int) -> Iterator[int]:
        yield from range(of, 40, 2)

    assert decision(numbers(0), numbers(0)).by == "auto"
    assert decision(numbers(0), numbers(1)).by == "workers"


def test_code_that_speaks_of_ranks_is_found_in_bases_and_functions() -> None:
    for stream in (AsksInAFunction, AsksInAFunction(), OfAnother, IsGivenIt):
        found = Look.at(stream, {}, None).decided(2)
        assert (found.by, found.in_doubt) == ("workers", True)
        assert "rank" in found.why.lower()


def test_code_that_asks_where_nobody_tells_is_not_of_a_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert Look.at(AsksInAFunction, {}, None).decided(2).by == "auto"
    assert Look.at(IsGivenIt, {}, None).decided(2).by == "workers"  # by whoever starts it


def test_worker_init_fn_that_was_given_its_rank_splits() -> None:
    given = [Look.at(Plain(), {}, functools.partial(give_part, rank, 2)) for rank in range(2)]
    assert all(look.decided(2, given).by == "workers" for look in given)
    assert all(look.decided(2).by == "workers" for look in given)  # also by itself
    seeded = [Look.at(Plain(), {}, functools.partial(give_part, 7, 40))] * 2
    assert seeded[0].decided(2, seeded).by == "auto"


def test_one_rank_that_sees_a_sign_decides_for_all() -> None:
    assert decision(Plain(), IsGivenIt(1)).by == "workers"


def test_option_is_taken_at_its_word() -> None:
    assert Look("ranks", likeness=b"a").decided(2, [Look("ranks"), Look("ranks")]).by == "ranks"


_SHOW = """
from swift_loader.worker.likeness import likeness_of
from tests.process import test_stream_ranks as streams
from tests.unit.loader import test_who_splits as own
made = [own.AsksInAFunction(), own.OfAnother, own.Unlike(), streams.ByVariables, streams.pipe()]
made += [make for name, (make, _, _) in streams.cases("").items() if "web" not in name]
if "HF, 3 shards" in streams.cases(""):
    made.append(streams.hugging_face(3))
print([likeness_of(one).hex() for one in made])
"""


def test_what_is_the_same_is_alike_in_every_process() -> None:
    said = [
        subprocess.run(
            [sys.executable, "-c", _SHOW],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert len(said[0]) > 100


def test_what_refers_to_itself_can_be_compared() -> None:
    def ring() -> list[Any]:
        found: list[Any] = [1]
        found.append(found)
        return found

    assert likeness_of(ring()) == likeness_of(ring())
