"""A batch that was copied while its samples lost their places is copied anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from swift_loader.batch.arena import Arena
from swift_loader.cache import kept
from swift_loader.cache.client import Use
from swift_loader.cache.directory import Directory, directory_bytes
from swift_loader.cache.kept import Kept
from swift_loader.cache.naming import StoreName
from swift_loader.cache.tallies import Tallies, tally_at


class Client:
    closed = silent = False

    def __init__(self) -> None:
        self.directory = Directory(np.zeros(directory_bytes(8), np.uint8))
        self.directory.note([(key, 640 * key, 500, 20, 100) for key in range(8)])
        self._tallies = Tallies(self.directory.tallies_bytes)
        self.tally = tally_at(self.directory.tallies_bytes, self._tallies.enter(1, 0))
        self.asked: list[list[int]] = []

    def ask(self, keys: Any, use: Use) -> Any:
        self.asked.append(keys.tolist())
        return 1, np.zeros((len(keys), 6), np.int64)

    def counted(self) -> tuple[int, int, int]:
        return self._tallies.of(0)


@pytest.mark.parametrize("ends", [False, True])
def test_the_store_is_asked_where_places_were_lost_while_they_were_read(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()

    def stacked(_: Any, rows: Any, arena: Arena) -> Any:
        if not rows[0, 0]:
            return None  # what `ask` says: it isn't there
        arena.reserve(100)
        if ends:
            client.directory.end()
        return rows[:, 2].tolist()

    monkeypatch.setattr(kept, "_stacked", stacked)
    monkeypatch.setattr(Kept, "_connected", lambda self: client)
    name = StoreName(1, None, None, None, "run", "fingerprint", "data set")
    source = Kept(name, 0, copies=False)
    source.begin(None, Use(0, 1, 0, 0))
    arena = Arena(np.zeros(1000, np.uint8))
    batch = source.gather([3, 1], arena)
    assert batch == (None if ends else [1920, 640])
    assert client.asked == ([[3, 1]] if ends else [])
    assert client.counted() == ((0, 0, 0) if ends else (2, 1040, 200))
    assert (arena.used_bytes == 0) is ends
