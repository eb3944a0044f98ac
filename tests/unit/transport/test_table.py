"""The table of messages: each has one row, arrives as it was sent, and nothing else arrives."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import swift_loader.cache.messages as cache
import swift_loader.dataloader2.workers.wire as pipes
import swift_loader.sharing.messages as sharing
import swift_loader.worker.zygote as life
from swift_loader.cache.naming import StoreName
from swift_loader.dataloader2.random import SeedGenerator
from swift_loader.order.part import Number
from swift_loader.plan import Plan
from swift_loader.telemetry.cache_stats import CacheStats
from swift_loader.transport import messages
from swift_loader.transport.table import TABLE, MessageError, pack, unpack
from swift_loader.worker.place import Place
from swift_loader.worker.script import ImportScript
from swift_loader.worker.surroundings import Surroundings

FAULT = messages.ErrorReport(b"N.", "ValueError", "broken", "Traceback ...", "fetching", (3,))
BAD = messages.BadSample(3, "ValueError: x", True)
TIMES = messages.StageTimes(0.5, 0.25, 0.0)
EPOCH = sharing.EpochBegins(3, 2, None, 10)
KEYS = np.array([3, -1, 2**62])
MESSAGES = [
    messages.Make(2**63, Number(2**32 - 1, 2**40, 2**50), 7, b"12345678"),
    messages.Make(1, Number(0, 0, 0), 0),
    messages.Long(4, 1 << 20),
    messages.Made(5, 64, 1 << 40, 1 << 41, TIMES, b"skeleton"),
    messages.Made(5, 64, 9, 0, TIMES, b"", 9, (BAD,), 1.5, b"state"),
    messages.Forget(frozenset({1, 2**63})),
    messages.SetPlan(7, Plan(100, 4, 2, True, 20, 2**64 - 1, "pad", ((0, 10), (20, 40)))),
    messages.Ready(None, "Images"),
    messages.StartFailed(FAULT),
    messages.Failed(1, FAULT),
    messages.Skipped(1),
    messages.Exhausted(1),
    life.Rest(),
    life.Spawn(
        1,
        Place(0, 1, 1, 0, None),
        Surroundings({"A": "b"}, "/", ["/x"], ["a.py"], {"umask": b""}),
        "module",
    ),
    ImportScript({"name": "x", "init_main_from_path": "/x/y.py"}, {"__main__": {"files": (3, 7)}}),
    life.Started(77),
    life.Exited(-9, "last words", 1 << 30),
    pipes.Begin(1, SeedGenerator(3), b"fn", 4),
    pipes.Connect(3),
    pipes.Give(1, -1, 4, 2),
    sharing.Batch(1, 2, 3, 4, 5, 6, b"skeleton", b"note"),
    sharing.Took(3, ()),
    sharing.Took(0, (1, 2**63)),
    sharing.Join("1", "name", "epoch", "producer", sharing.Position(1, 2)),
    sharing.Admit(EPOCH, 4, "producer"),
    EPOCH,
    sharing.EpochEnds(3, 10, EPOCH),
    sharing.Region(1, 1 << 20, "cuda:0", b"handle"),
    sharing.ForgetRegion(1),
    sharing.Leave(),
    sharing.Dropped("slow"),
    sharing.Ended(),
    cache.Enter(StoreName(1 << 30, None, None, "key", "run", "print", "Images"), 1),
    cache.Entered(1 << 30, "/cache", 3, "no room"),
    cache.Course(Plan(100, 4, 2, True, 20, 7)),
    cache.Ask(7, 0, 1, 2**40, 2**50, 3, True, KEYS),
    cache.Ask(8, 7, 1, cache.UNPLANNED, 0, 0, False, KEYS, cache.WAITING),
    cache.Answer(9, np.arange(12).reshape(2, 6)),
    cache.Room(10, np.arange(16).reshape(2, 8)),
    cache.Placed(11, np.arange(8).reshape(2, 4)),
    cache.Keep(12, np.arange(10).reshape(2, 5)),
    cache.Done(2**64 - 1),
    cache.Trouble("no space left"),
    cache.Heard(True),
    cache.Tell(2),
    cache.Told(CacheStats(hits=3)),
]


def plain(message: Any) -> Any:
    """Arrays as lists, to be compared."""
    if not isinstance(message, tuple):
        return message
    return [part.tolist() if isinstance(part, np.ndarray) else part for part in message]


def test_each_kind_and_each_name_stands_once_and_has_a_class() -> None:
    assert len({row.kind for row in TABLE}) == len({row.name for row in TABLE}) == len(TABLE)
    assert {row.name for row in TABLE} == {type(message).__name__ for message in MESSAGES}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_message_arrives_as_it_was_sent(message: Any) -> None:
    kind, payload = pack(message)
    (row,) = [row for row in TABLE if row.name == type(message).__name__]
    assert kind == row.kind
    assert row.packing == ("pickle" if dataclasses.is_dataclass(message) else "struct")
    got = unpack(kind, payload)
    assert type(got) is type(message)
    if not isinstance(message, pipes.Begin):
        assert plain(got) == plain(message)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (0, b""),
        (255, b"x"),
        (2, b"short"),
        (1, b""),
        (34, b"1"),
        (49, b"12345"),
        (50, b""),
        (50, b"no pickle"),
        (50, pickle.dumps({"a": "dict"})),
        (50, pickle.dumps(sharing.Leave())),
    ],
)
def test_what_is_no_message_is_refused(kind: int, payload: bytes) -> None:
    with pytest.raises(MessageError):
        unpack(kind, payload)


@given(st.sampled_from([m for m in MESSAGES if isinstance(m, tuple)]), st.data())
def test_packed_message_that_was_cut_is_refused_or_another_one(message: Any, data: Any) -> None:
    kind, payload = pack(message)
    cut = payload[: data.draw(st.integers(0, len(payload)))]
    try:
        got = unpack(kind, cut)
    except MessageError:
        return
    assert type(got) is type(message)
