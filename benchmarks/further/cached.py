"""What the cache gives: rates, ratios and counts, each in one run, everything in turn.

    python -m benchmarks.further.cached [--only jpeg,rivals] [--rounds 3] [--samples 1024]

``jpeg``    photographs, decoded once, over torch's `DataLoader` and over images from memory
``rivals``  the ways people keep samples with torch's `DataLoader` today
``ranks``   two ranks of one host: how often each sample is made, and the rate
``half``    room for half of the samples: hit rate of each epoch
``disk``    the same training a second time, from files in the page cache
``bucket``  30 ms a request, samples of 100 KB
``stores``  what a file of one's own, LMDB and SQLite take to write and read a sample

Needs ``pillow`` and ``scikit-learn``. Of ``diskcache``, ``joblib`` and ``lmdb``, what is missing is
left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import sqlite3
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Manager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks.datasets import cut_jpegs
from swift_loader import SwiftLoader
from swift_loader.cache import Cache

_BATCH = 32
_SIDE = 224
_WORKERS = 2


class Photographs:
    """JPEG files, decoded and cropped in the middle: ``(uint8 [3, 224, 224], index)``."""

    def __init__(self, folder: str, n: int, count: str = "") -> None:
        self.paths = sorted(str(path) for path in Path(folder).glob("*.jpg"))
        self.n, self.count = n, count

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        if self.count:
            with open(self.count, "a") as file:
                file.write(f"{index}\n")
        with Image.open(self.paths[index % len(self.paths)]) as image:
            pixels = np.asarray(image.convert("RGB"))[:_SIDE, :_SIDE]
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), index


class InMemory:
    """The same shape, from an array that is there: the bar of `image-u8`."""

    def __init__(self, n: int) -> None:
        self.pixels = torch.randint(0, 256, (128, 3, _SIDE, _SIDE), dtype=torch.uint8)
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pixels[index % 128], index


class Bucket:
    """100 KB a request, which takes `latency_s`; by coroutines."""

    def __init__(self, n: int, latency_s: float) -> None:
        self.n, self.latency_s = n, latency_s
        self.data = np.zeros(100_000, np.uint8)

    def __len__(self) -> int:
        return self.n

    async def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        await asyncio.sleep(self.latency_s)
        return self.data.copy(), index


class Waiting(Bucket):
    """The same without coroutines, for torch."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.latency_s)
        return self.data.copy(), index


class Through:
    """`inner` through something that keeps: ``get(index)`` gives a sample or None, and ``put``."""

    def __init__(self, inner: Any, kind: str, place: str, shared: Any = None) -> None:
        self.inner, self.kind, self.place, self.shared = inner, kind, place, shared
        self.opened: Any = None

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        if self.opened is None:
            self.opened = self._open()
        get, put = self.opened
        sample = get(index)
        if sample is None:
            sample = self.inner[index]
            put(index, sample)
        return sample

    def _open(self) -> tuple[Callable[[int], Any], Callable[[int, Any], Any]]:
        if self.kind == "Manager().dict()":
            return self.shared.get, self.shared.__setitem__
        if self.kind == "dict in persistent workers":
            kept: dict[int, Any] = {}
            return kept.get, kept.__setitem__
        if self.kind == "diskcache":
            import diskcache

            found = diskcache.Cache(self.place, size_limit=2**36)
            return found.get, found.set
        if self.kind == "joblib.Memory":
            import joblib

            call = joblib.Memory(self.place, verbose=0).cache(self.inner.__getitem__)
            return call, lambda index, sample: None
        import lmdb

        base = lmdb.open(self.place, map_size=2**34, sync=False)

        def get(index: int) -> Any:
            with base.begin(buffers=True) as look:
                found = look.get(str(index).encode())
                return None if found is None else pickle.loads(found)

        def put(index: int, sample: Any) -> None:
            with base.begin(write=True) as change:
                change.put(str(index).encode(), pickle.dumps(sample, 5))

        return get, put


RIVALS = (
    *("Manager().dict()", "dict in persistent workers", "diskcache", "joblib.Memory", "LMDB"),
)


def say(name: str, **facts: Any) -> None:
    shown = {
        key: float(f"{value:.4g}") if isinstance(value, float) else value
        for key, value in facts.items()
    }
    print(json.dumps({"figure": name, **shown}), flush=True)


def rate(batches: Iterator[Any] | Any, n: int) -> float:
    """Samples a second of one epoch."""
    began_s = time.perf_counter()
    for _ in batches:
        pass
    return n / (time.perf_counter() - began_s)


@contextmanager
def loader(dataset: Any, kwargs: dict[str, Any], **options: Any) -> Iterator[SwiftLoader]:
    options = {"validate": False, "worker_per_consumer": _WORKERS, "shuffle": True, **options}
    options.setdefault("prefetch_epochs", 0)  # an epoch is measured from its beginning
    with SwiftLoader(dataset, kwargs, batch_size=_BATCH, **options) as made:
        made.start(0)
        yield made


def torch_loader(dataset: Any) -> DataLoader[Any]:
    return DataLoader(
        dataset, batch_size=_BATCH, shuffle=True, num_workers=_WORKERS, persistent_workers=True
    )


def jpeg(folder: str, n: int, rounds: int) -> None:
    photographs: dict[str, Any] = {"folder": folder, "n": n}
    first: dict[str, list[float]] = {"cache": [], "none": []}
    rates: dict[str, list[float]] = {"cached": [], "torch": [], "image-u8": []}
    theirs = torch_loader(Photographs(**photographs))
    rate(theirs, n)
    for _ in range(rounds):
        with (
            loader(Photographs, photographs, cache="2GB") as ours,
            loader(Photographs, photographs) as plain,
            loader(InMemory, {"n": n}) as memory,
        ):
            first["none"].append(rate(plain, n))
            first["cache"].append(rate(ours, n))
            rate(memory, n)
            for _ in range(3):
                rates["cached"].append(rate(ours, n))
                rates["image-u8"].append(rate(memory, n))
            rates["torch"].append(rate(theirs, n))
    middle = {name: statistics.median(each) for name, each in {**rates, **first}.items()}
    say("jpeg: samples/s", **middle)
    say("jpeg: cached over torch", ratio=middle["cached"] / middle["torch"], bar=10)
    say("jpeg: cached over image-u8", ratio=middle["cached"] / middle["image-u8"], bar=0.8)
    say("jpeg: first epoch over none", ratio=middle["cache"] / middle["none"], bar=0.95)


def rivals(folder: str, n: int, rounds: int) -> None:
    photographs = Photographs(folder, n)
    rates: dict[str, list[float]] = {}
    for name in RIVALS:
        with tempfile.TemporaryDirectory() as place, suppress(ImportError), Manager() as manager:
            shared = manager.dict() if name == "Manager().dict()" else None
            theirs = torch_loader(Through(photographs, name, place, shared))
            rate(theirs, n)
            rates[name] = [rate(theirs, n) for _ in range(rounds + 1)][1:]
            del theirs
    with loader(Photographs, {"folder": folder, "n": n}, cache="2GB") as ours:
        rate(ours, n)
        rates["swift_loader"] = [rate(ours, n) for _ in range(rounds + 1)][1:]
    own = statistics.median(rates["swift_loader"])
    for name, each in rates.items():
        middle = statistics.median(each)
        say(
            "rivals: samples/s after the first epochs",
            way=name,
            rate=middle,
            ours_over=own / middle,
        )


def ranks(folder: str, n: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        count = os.path.join(place, "made")
        kwargs = {"folder": folder, "n": n, "count": count}
        options: dict[str, Any] = {"cache": "2GB", "nb_consumer": 2, "worker_per_consumer": 1}
        with SwiftLoader(
            Photographs, kwargs, batch_size=_BATCH, shuffle=True, validate=False, **options
        ) as one, SwiftLoader(
            Photographs, kwargs, batch_size=_BATCH, shuffle=True, validate=False, **options
        ) as two:  # fmt: skip
            one.start(0)
            two.start(1)
            rate(zip(one, two, strict=True), n)
            both = [rate(zip(one, two, strict=True), n) for _ in range(rounds + 1)][1:]
        times = Counter(Counter(Path(count).read_text().split()).values())
    with loader(Photographs, {"folder": folder, "n": n}, cache="2GB", worker_per_consumer=1) as one:
        rate(one, n)
        alone = [rate(one, n) for _ in range(rounds + 1)][1:]
    say("ranks: samples made so many times", **{str(key): value for key, value in times.items()})
    say("ranks: two over one", ratio=statistics.median(both) / statistics.median(alone), bar=2)


def half(folder: str, n: int, rounds: int) -> None:
    nbytes = n * (3 * _SIDE * _SIDE + 4096)
    with loader(Photographs, {"folder": folder, "n": n}, cache=nbytes // 2) as ours:
        before = hits = 0
        found = []
        for _ in range(max(3, rounds)):
            rate(ours, n)
            figures = ours.stats().cache
            assert figures is not None
            found.append((figures.hits - hits) / (figures.hits + figures.misses - before))
            before, hits = figures.hits + figures.misses, figures.hits
        say("half: hit rate of each epoch", rates=[round(each, 3) for each in found],
            evicted=figures.evicted if figures is not None else 0)  # fmt: skip


def disk(folder: str, n: int, rounds: int) -> None:
    """In the first batches of any loader, slots are made; images from memory tell what that costs.

    So the epochs are longer than elsewhere here.
    """
    n = 8 * n
    photographs = {"folder": folder, "n": n}
    ratios, plain, made = [], [], 0
    with tempfile.TemporaryDirectory() as place:
        cache = Cache(disk=place, key="k")
        with loader(Photographs, photographs, cache=cache) as ours:
            rate(ours, n)
        for _ in range(rounds):
            with loader(Photographs, photographs, cache=cache) as ours:
                ratios.append(rate(ours, n) / rate(ours, n))
                figures = ours.stats().cache
            made += figures.misses if figures is not None else n
            with loader(InMemory, {"n": n}) as memory:
                plain.append(rate(memory, n) / rate(memory, n))
    say("disk: first epoch over second, second run", ratio=statistics.median(ratios), bar=0.8,
        made=made, from_memory=statistics.median(plain))  # fmt: skip


def bucket(folder: str, n: int, rounds: int) -> None:
    n = max(n, 2000)
    rates: dict[str, list[float]] = {"30 ms": [], "none": [], "torch, 30 ms": []}
    for _ in range(rounds):
        for name, latency_s in (("30 ms", 0.03), ("none", 0.0)):
            with loader(Bucket, {"n": n, "latency_s": latency_s}, cache="2GB") as ours:
                rates[name].append(rate(ours, n))
    few = 400
    rates["torch, 30 ms"].append(rate(torch_loader(Waiting(few, 0.03)), few))
    middle = {name: statistics.median(each) for name, each in rates.items()}
    say("bucket: samples/s of the first epoch", **middle)
    say("bucket: 30 ms over none", ratio=middle["30 ms"] / middle["none"], bar=0.9)


def stores(folder: str, n: int, rounds: int) -> None:
    """Microseconds to write and to read a sample of 150 KB, in one process."""
    sample = np.random.default_rng(0).integers(0, 256, 3 * _SIDE * _SIDE, dtype=np.uint8)
    data = sample.tobytes()
    for name in ("file", "LMDB", "SQLite"):
        with tempfile.TemporaryDirectory() as place, suppress(ImportError):
            put, get = _store(name, place, len(data))
            began_s = time.perf_counter()
            for key in range(n):
                put(key, data)
            written_s = time.perf_counter()
            for key in range(n):
                assert get(key)[-1] == data[-1]
                np.frombuffer(get(key), np.uint8).copy()
            read_s = time.perf_counter()
        say("stores: microseconds a sample", store=name, write=(written_s - began_s) / n * 1e6,
            read=(read_s - written_s) / n * 1e6)  # fmt: skip


def _store(name: str, place: str, nbytes: int) -> tuple[Callable[..., Any], Callable[[int], Any]]:
    if name == "file":
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


FIGURES = {each.__name__: each for each in (jpeg, rivals, ranks, half, disk, bucket, stores)}


def main() -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(FIGURES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=1024)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        cut_jpegs(Path(folder))
        for name in options.only.split(","):
            FIGURES[name](folder, options.samples, options.rounds)


if __name__ == "__main__":
    main()
