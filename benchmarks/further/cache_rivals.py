"""The ways in which people keep samples with torch's `DataLoader` today, beside the cache.

    python -m benchmarks --only cache-rivals   # needs Pillow and scikit-learn

- ``rivals``: photographs, decoded once, over a dict of a `multiprocessing.Manager`, a dict in each
  persistent worker, ``diskcache``, ``joblib.Memory`` and LMDB, all in turn; and over torch's loader
  that keeps nothing. Each has had three epochs to fill.
- ``files``: what a file of one's own, LMDB and SQLite take to write and to read a sample.

What can't be imported is named, and left out.
"""

from __future__ import annotations

import os
import pickle
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from multiprocessing import Manager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import fresh
from benchmarks.datasets import cut_jpegs
from benchmarks.figures import Figure, over
from benchmarks.further.cached import Photographs, decoded, loader, rate, torch_loader
from benchmarks.further.pairs import nb_rounds
from benchmarks.spread import spread

__all__ = ["run"]

_NOTHING = "torch DataLoader, nothing kept"
_NB_FILLING = 3
_NEEDS = {"diskcache": "diskcache", "joblib.Memory": "joblib", "LMDB": "lmdb"}
_WAYS = ("Manager().dict()", "a dict in each worker", *_NEEDS)
_SAMPLE_BYTES = 3 * 224 * 224
_TIMEOUT_S = 300.0

Get = Callable[[int], Any]
Put = Callable[[int, Any], Any]


class Through:
    """Photographs through something that keeps them, as numpy arrays; opened in each worker."""

    def __init__(self, inner: Photographs, way: str, place: str, shared: Any) -> None:
        self.inner, self.way, self.place, self.shared = inner, way, place, shared
        self.opened: tuple[Get, Put] | None = None

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.opened is None:
            self.opened = self._open()
        get, put = self.opened
        pixels = get(index)
        if pixels is None:
            pixels = self._made(index)
            put(index, pixels)
        return torch.from_numpy(pixels), index

    def _made(self, index: int) -> Any:
        return decoded(self.inner.paths[index % len(self.inner.paths)])

    def _open(self) -> tuple[Get, Put]:
        if self.way == "Manager().dict()":
            return self.shared.get, self.shared.__setitem__
        if self.way == "a dict in each worker":
            kept: dict[int, Any] = {}
            return kept.get, kept.__setitem__
        if self.way == "diskcache":
            import diskcache

            found = diskcache.Cache(self.place, size_limit=2**36)
            return found.get, found.set
        if self.way == "joblib.Memory":
            import joblib

            call = joblib.Memory(self.place, verbose=0).cache(_decoded_as)
            paths = self.inner.paths
            return lambda index: call(paths[index % len(paths)], index), lambda index, pixels: None
        return _lmdb(self.place)


def _decoded_as(path: str, index: int) -> Any:
    """Each index is another photograph."""
    return decoded(path)


def _lmdb(place: str) -> tuple[Get, Put]:
    import lmdb

    base = lmdb.open(place, map_size=2**34, sync=False)

    def get(index: int) -> Any:
        with base.begin(buffers=True) as look:
            found = look.get(str(index).encode())
            return None if found is None else pickle.loads(found)

    def put(index: int, pixels: Any) -> None:
        with base.begin(write=True) as change:
            change.put(str(index).encode(), pickle.dumps(pixels, 5))

    return get, put


def importable() -> list[str]:
    """The ways whose package is there; says which are not."""
    found = []
    for way in _WAYS:
        try:
            import_module(_NEEDS.get(way, "sys"))
        except ImportError as error:
            print(f"cache-rivals: {way} is left out: {error}", file=sys.stderr)
            continue
        found.append(way)
    return found


def rates_in_turn(folder: str, n: int, rounds: int, ways: list[str]) -> dict[str, list[float]]:
    """Samples a second of all, an epoch of each in turn."""
    photographs = Photographs(folder, n)
    with ExitStack() as stack:
        shared = stack.enter_context(Manager()).dict()
        loaders: dict[str, Any] = {_NOTHING: torch_loader(photographs)}
        for way in ways:
            place = stack.enter_context(tempfile.TemporaryDirectory())
            loaders[way] = torch_loader(Through(photographs, way, place, shared))
        loaders["ours"] = stack.enter_context(
            loader(Photographs, {"folder": folder, "n": n}, cache="2GB")
        )
        stack.callback(loaders.clear)  # workers end before what they use does
        rates: dict[str, list[float]] = {name: [] for name in loaders}
        for number in range(_NB_FILLING + rounds):
            for name in list(loaders)[:: -1 if number % 2 else 1]:
                rates[name].append(rate(loaders[name], n))
    return {name: each[_NB_FILLING:] for name, each in rates.items()}


def files(name: str, n: int) -> dict[str, float]:
    """Microseconds to write and to read a sample of 150 KB, in one process."""
    data = np.random.default_rng(0).integers(0, 256, _SAMPLE_BYTES, dtype=np.uint8).tobytes()
    with tempfile.TemporaryDirectory() as place:
        put, get = _store(name, place, len(data))
        began_s = time.perf_counter()
        for key in range(n):
            put(key, data)
        written_s = time.perf_counter()
        for key in range(n):
            np.frombuffer(get(key), np.uint8).copy()
        read_s = time.perf_counter()
    return {"write": (written_s - began_s) / n * 1e6, "read": (read_s - written_s) / n * 1e6}


def _store(name: str, place: str, nbytes: int) -> tuple[Put, Get]:
    if name == "a file of one's own":
        from swift_loader.transport.memory import map_private

        fd = os.open(os.path.join(place, "data"), os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 1 << 30)
        view = memoryview(map_private(fd, 1 << 30))
        return (
            lambda key, data: os.pwrite(fd, data, key * nbytes),
            lambda key: view[key * nbytes : (key + 1) * nbytes],
        )
    if name == "LMDB":
        import lmdb

        base = lmdb.open(place, map_size=2**32, sync=False)

        def put(key: int, data: bytes) -> None:
            with base.begin(write=True) as change:
                change.put(str(key).encode(), data)

        look = None

        def get(key: int) -> Any:
            nonlocal look
            look = look or base.begin(buffers=True)
            return look.get(str(key).encode())

        return put, get
    table = sqlite3.connect(os.path.join(place, "data"), isolation_level=None)
    table.execute("PRAGMA journal_mode=WAL")
    table.execute("PRAGMA synchronous=OFF")
    table.execute("CREATE TABLE kept (key INTEGER PRIMARY KEY, data BLOB)")
    return (
        lambda key, data: table.execute("INSERT INTO kept VALUES (?, ?)", (key, data)),
        lambda key: table.execute("SELECT data FROM kept WHERE key=?", (key,)).fetchone()[0],
    )


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Our rate over each rival's, in samples a second; then the candidates for files."""
    n, rounds = (256 if is_quick else 1024), nb_rounds(is_quick)
    ways = importable()
    with tempfile.TemporaryDirectory() as folder:
        cut_jpegs(Path(folder))
        rates = fresh.call(
            rates_in_turn, folder=folder, n=n, rounds=rounds, ways=ways, timeout_s=_TIMEOUT_S
        )
    figures = [
        over("cache-rivals", f"jpeg, later epochs, over {name}", rates["ours"], each, None)
        for name, each in rates.items()
        if name != "ours"
    ]
    for name in ("a file of one's own", "LMDB", "SQLite"):
        if name == "LMDB" and name not in ways:
            continue
        found = [fresh.call(files, name=name, n=n) for _ in range(rounds)]
        for what in ("write", "read"):
            value = spread([each[what] for each in found])
            figures.append(Figure("cache-rivals", f"150 KB, {name}: {what}", value, "us"))
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "cache-rivals"])
