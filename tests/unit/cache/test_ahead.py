"""Reading ahead keeps requests under way while what has come is written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from swift_loader.batch.asynchronous import Loop
from swift_loader.cache import ahead
from swift_loader.cache.ahead import Ahead
from swift_loader.cache.messages import TO_MAKE, Rows
from swift_loader.cache.naming import StoreName
from swift_loader.plan import Plan

_N, _BATCH = 2048, 32


class EndingTogether:
    """The first requests end together, once as many as may be are under way; later ones never."""

    def __init__(self, together: int, events: list[tuple[str, int]]) -> None:
        self.together, self.events = together, events
        self.begun = 0
        self.gate = asyncio.Event()

    async def __getitem__(self, key: int) -> int:
        self.begun += 1
        self.events.append(("begun", 1))
        if self.begun == self.together:
            self.gate.set()
        if self.begun <= self.together:
            await self.gate.wait()
        else:
            await asyncio.Event().wait()
        return key


class Client:
    """Of a store that has nothing."""

    closed = silent = False

    def ask(self, keys: Rows, use: Any) -> tuple[int, Rows]:
        return 1, np.full((len(keys), 6), TO_MAKE)

    def done(self, serial: int) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def test_others_are_begun_before_all_that_came_together_is_written(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, int]] = []
    all_written = threading.Event()
    together = ahead._UNDER_WAY

    class Writer:
        def put(self, client: Any, made: list[Any], use: Any, cost_s: float) -> int:
            events.append(("written", len(made)))
            if sum(count for what, count in events if what == "written") == together:
                all_written.set()
            return 8 * len(made)

    monkeypatch.setattr(ahead, "Client", lambda name, consumer: Client())
    monkeypatch.setattr(ahead, "Writer", Writer)
    name = StoreName(1, None, None, None, "run", "fingerprint", "data set")
    dataset = EndingTogether(together, events)
    reader = Ahead(name, 0, dataset, loop, None, 1)
    try:
        reader.want(Plan(_N, _BATCH, 1, True, 0, 0), 0, 0, 0, 0)
        assert all_written.wait(60)
    finally:
        reader.close()
    first = next(at for at, (what, _) in enumerate(events) if what == "written")
    before = events[:first]
    assert before == [("begun", 1)] * together
    last = max(at for at, (what, _) in enumerate(events) if what == "written")
    assert ("begun", 1) in events[first:last]


class Gathering:
    """After the first requests, each waits until so many have been under way at once."""

    def __init__(self, first: int, together: int) -> None:
        self.first, self.together = first, together
        self.begun = self.under_way = self.most = 0
        self.gate = asyncio.Event()

    async def __getitem__(self, key: int) -> int:
        self.begun += 1
        self.under_way += 1
        if self.begun > self.first:
            self.most = max(self.most, self.under_way)
            if self.under_way >= self.together:
                self.gate.set()
            await self.gate.wait()
        await asyncio.sleep(0)
        self.under_way -= 1
        return key


@pytest.mark.parametrize(
    ("sample_bytes", "most"), [(100_000, 512), (1 << 20, 256), (1 << 22, 64), (1 << 30, 32)]
)
def test_fewer_requests_are_under_way_the_larger_the_samples_are(
    sample_bytes: int, most: int, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0
    all_written = threading.Event()

    class Writer:
        def put(self, client: Any, made: list[Any], use: Any, cost_s: float) -> int:
            nonlocal written
            written += len(made)
            if written == _N:
                all_written.set()
            return sample_bytes * len(made)

    monkeypatch.setattr(ahead, "Client", lambda name, consumer: Client())
    monkeypatch.setattr(ahead, "Writer", Writer)
    name = StoreName(1, None, None, None, "run", "fingerprint", "data set")
    dataset = Gathering(ahead._UNDER_WAY, most)
    reader = Ahead(name, 0, dataset, loop, None, 1)
    try:
        for k in range(_N // _BATCH):
            reader.want(Plan(_N, _BATCH, 1, True, 0, 0), 0, 0, k, 0)
        assert all_written.wait(60)
    finally:
        reader.close()
    assert dataset.most == most
