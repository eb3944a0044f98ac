"""What the cache gives: rates, hit rates and counts, each ratio in one run.

    python -m benchmarks --only cache          # needs Pillow and scikit-learn

- ``jpeg``: photographs that are decoded once, over torch's `DataLoader` and over images of the same
  shape from memory; and what the first epoch costs. ``image-u8`` has 128 images, which lie in the
  processor's cache; as many images as are kept do not, so they are what a cache can come up to.
- ``two ranks``: each with half of the cores, over one rank with half of the cores, and how many
  samples were made twice.
- ``part``: memory for a part of the samples: hits over what the best rule of all would get, by a
  run, and by a simulation of 10 epochs (see `benchmarks.further.eviction`).
- ``disk``: the same training a second time, from files in the page cache.
- ``bucket``: 30 ms a request, samples of 100 KB. An epoch of 2000 samples takes some 200 ms, of
  which nobody can save the first 30; the long epoch has six times as many.

`benchmarks.further.cache_rivals` compares with what people use today.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks import fresh
from benchmarks.datasets import cut_jpegs
from benchmarks.figures import Figure, over
from benchmarks.further import eviction
from benchmarks.further.pairs import nb_rounds
from benchmarks.spread import ratios, spread
from swift_loader import SwiftLoader
from swift_loader.cache import Cache
from swift_loader.plan import Plan

__all__ = ["Photographs", "loader", "rate", "run", "torch_loader"]

_BATCH = 32
_SIDE = 224
_WORKERS = 2
_LATENCY_S = 0.03
_NB_EPOCHS = 12  # of some 40 ms
_NB_IMAGES = 128
_LONG = 6  # times as many requests
_NB_TORCH_REQUESTS = 400  # one after the other


class Photographs:
    """JPEG files, decoded and cropped in the middle: ``(uint8 [3, 224, 224], index)``.

    A line in the file `count` for each one that is made.
    """

    def __init__(self, folder: str, n: int, count: str = "") -> None:
        self.paths = sorted(str(path) for path in Path(folder).glob("*.jpg"))
        self.n, self.count = n, count

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.count:
            with open(self.count, "a") as file:
                file.write(f"{index}\n")
        return torch.from_numpy(decoded(self.paths[index % len(self.paths)])), index


def decoded(path: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    from PIL import Image

    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))[:_SIDE, :_SIDE]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


class InMemory:
    """The same shape, from an array that is there: the bar of `image-u8`."""

    def __init__(self, n: int, nb_images: int = _NB_IMAGES) -> None:
        self.pixels = torch.randint(0, 256, (nb_images, 3, _SIDE, _SIDE), dtype=torch.uint8)
        self.n, self.nb_images = n, nb_images

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pixels[index % self.nb_images], index


class Bucket:
    """100 KB a request, which takes `latency_s`; by coroutines."""

    def __init__(self, n: int, latency_s: float) -> None:
        self.n, self.latency_s = n, latency_s
        self.data = np.zeros(100_000, np.uint8)

    def __len__(self) -> int:
        return self.n

    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(self.latency_s)
        return self.data.copy(), index


class Waiting(Bucket):
    """The same without coroutines, for torch."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.latency_s)
        return self.data.copy(), index


def rate(batches: Iterable[Any], n: int) -> float:
    """Samples a second of one epoch."""
    began_s = time.perf_counter()
    for _ in batches:
        pass
    return n / (time.perf_counter() - began_s)


@contextmanager
def loader(
    dataset: Any, kwargs: dict[str, Any], consumer: int = 0, **options: Any
) -> Iterator[SwiftLoader[Any]]:
    """A loader that is started. An epoch is measured from its beginning: none is begun ahead."""
    torch.set_num_threads(1)
    usual = {"batch_size": _BATCH, "shuffle": True, "validate": False, "prefetch_epochs": 0}
    with SwiftLoader(
        dataset, kwargs, **{**usual, "worker_per_consumer": _WORKERS, **options}
    ) as made:
        made.start(consumer)
        yield made


def torch_loader(dataset: Any) -> DataLoader[Any]:
    torch.set_num_threads(1)
    return DataLoader(
        dataset, batch_size=_BATCH, shuffle=True, num_workers=_WORKERS, persistent_workers=True
    )


# ---- probes: each is called in a process of its own, and returns plain values


def first_epoch(folder: str, n: int, cache: str | None) -> float:
    with loader(Photographs, {"folder": folder, "n": n}, cache=cache) as made:
        return rate(made, n)


def later_epochs(folder: str, n: int) -> dict[str, float]:
    """Medians of epochs in turn, of all four."""
    photographs: dict[str, Any] = {"folder": folder, "n": n}
    rates: dict[str, list[float]] = {"cached": [], "image-u8": [], "as many": [], "torch": []}
    theirs = torch_loader(Photographs(**photographs))
    with (
        loader(Photographs, photographs, cache="2GB") as ours,
        loader(InMemory, {"n": n}) as memory,
        loader(InMemory, {"n": n, "nb_images": n}) as many,
    ):
        for each in (theirs, ours, memory, many):
            rate(each, n)
        in_turn = (("cached", ours), ("image-u8", memory), ("as many", many))
        for number in range(_NB_EPOCHS):
            for name, each in in_turn[:: -1 if number % 2 else 1]:
                rates[name].append(rate(each, n))
        rates["torch"].append(rate(theirs, n))
    return {name: statistics.median(each) for name, each in rates.items()}


def part_kept(n: int, share: float, nb_epochs: int) -> dict[str, Any]:
    """Hit rate of each epoch after the first, with memory for a part of the samples."""
    memory = int(n * share * (3 * _SIDE * _SIDE + 1024))
    rates, before, evicted = [], 0, 0
    with loader(InMemory, {"n": n}, cache=memory) as ours:
        rate(ours, n)
        for _ in range(nb_epochs):
            rate(ours, n)
            figures = ours.stats().cache
            assert figures is not None
            rates.append((figures.hits - before) / n)
            before, evicted = figures.hits, figures.evicted
    return {"rates": rates, "evicted": evicted}


def second_run(folder: str, n: int, place: str) -> dict[str, float]:
    """Its first epoch over its second one, of the same training; and of images from memory."""
    with loader(Photographs, {"folder": folder, "n": n}, cache=Cache(disk=place, key="k")) as ours:
        ratio = rate(ours, n) / rate(ours, n)
        figures = ours.stats().cache
    assert figures is not None
    with loader(InMemory, {"n": n}) as memory:
        plain = rate(memory, n) / rate(memory, n)
    return {"ratio": ratio, "made": figures.misses, "plain": plain}


def bucket_rate(n: int, latency_s: float) -> float:
    with loader(Bucket, {"n": n, "latency_s": latency_s}, cache="2GB") as ours:
        return rate(ours, n)


def torch_bucket_rate(n: int, latency_s: float) -> float:
    return rate(torch_loader(Waiting(n, latency_s)), n)


def ranks(kwargs: dict[str, Any], n: int, nb_rank: int, nb_epochs: int) -> list[float]:
    """Samples a second of all ranks in each epoch. Each rank has half of the cores.

    Of photographs in a cache; where `kwargs` has no folder of these, of as many images in memory.
    """
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(nb_rank), context.Queue()
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    made = [
        context.Process(
            target=_rank,
            args=(rank, nb_rank, cores[half * rank : half * (rank + 1)], kwargs, nb_epochs),
            kwargs={"barrier": barrier, "answers": answers},
        )
        for rank in range(nb_rank)
    ]
    for process in made:
        process.start()
    times = [answers.get(timeout=100) for _ in made]
    for process in made:
        process.join()
    return [n / max(each) for each in zip(*times, strict=True)]


def _rank(
    rank: int,
    nb_rank: int,
    cores: list[int],
    kwargs: dict[str, Any],
    nb_epochs: int,
    barrier: Any,
    answers: Any,
) -> None:
    os.sched_setaffinity(0, cores)
    options: dict[str, Any] = {"nb_consumer": nb_rank, "worker_per_consumer": len(cores)}
    dataset: Any = InMemory
    if "folder" in kwargs:
        dataset, options["cache"] = Photographs, Cache("2GB", key=kwargs["count"])
    times = []
    with loader(dataset, kwargs, rank, **options) as made:
        for _ in range(nb_epochs):
            barrier.wait(60)
            times.append(1 / rate(made, 1))
        barrier.wait(60)  # the store ends with the last one
    answers.put(times)


# ---- figures


def jpeg(folder: str, n: int, rounds: int) -> list[Figure]:
    first: dict[str | None, list[float]] = {"2GB": [], None: []}
    for number in range(2 * rounds):
        for cache in (None, "2GB")[:: -1 if number % 2 else 1]:
            first[cache].append(fresh.call(first_epoch, folder=folder, n=n, cache=cache))
    later = [fresh.call(later_epochs, folder=folder, n=n) for _ in range(rounds)]
    cached, memory, many, theirs = (
        [each[name] for each in later] for name in ("cached", "image-u8", "as many", "torch")
    )
    return [
        over("cache", "jpeg, later epochs, over torch DataLoader", cached, theirs, 10),
        over("cache", "jpeg, later epochs, over image-u8 from memory", cached, memory, 0.8),
        over("cache", "jpeg, later epochs, over as many images from memory", cached, many, 0.8),
        over("cache", "jpeg, first epoch, over no cache", first["2GB"], first[None], 0.95),
    ]


def two_ranks(folder: str, n: int, rounds: int) -> list[Figure]:
    if len(os.sched_getaffinity(0)) < 2:
        return []
    both: list[list[float]] = []
    alone: list[list[float]] = []
    memory: dict[int, list[float]] = {1: [], 2: []}  # what two ranks without a cache can do here
    often = 0
    for _ in range(rounds):
        for nb_rank, rates in ((1, alone), (2, both)):
            with tempfile.TemporaryDirectory() as place:
                count = os.path.join(place, "made")
                kwargs = {"folder": folder, "n": n, "count": count}
                rates.append(ranks(kwargs, n, nb_rank, nb_epochs=4))
                made = Counter(Path(count).read_text().split())
                assert len(made) == n
                often = max(often, *made.values())
            plain = ranks({"n": n, "nb_images": n}, n, nb_rank, nb_epochs=4)
            memory[nb_rank].append(statistics.median(plain[1:]))
    figures = [
        Figure("cache", "two ranks: a sample was made so often", spread([often]), "", 1),
    ]
    for name, first, last in (("first epoch", 0, 1), ("later epochs", 1, 4)):
        ours, theirs = (
            [statistics.median(each[first:last]) for each in rates] for rates in (both, alone)
        )
        figures.append(over("cache", f"two ranks, {name}, over one", ours, theirs, 2))
    what = "two ranks, images from memory, no cache, over one"
    figures.append(over("cache", what, memory[2], memory[1], None))
    return figures


def part(n: int, rounds: int) -> list[Figure]:
    figures = []
    for share in (0.3, 0.5, 0.6, 0.8):
        found = fresh.call(part_kept, n=n, share=share, nb_epochs=rounds + 2)
        # An epoch uses each sample once: more hits than there were samples can't be.
        best = spread([each / share for each in found["rates"]])
        what = f"part: room for {share:.0%}, hits over the best possible, by a run"
        figures.append(
            Figure("cache", what, best, "x", 0.98, "at least", f"{found['evicted']} evicted")
        )
    plan = Plan(2000, _BATCH, 2, True, 0, 0)
    # That an epoch is left early is seen in the second one.
    for run_for, first, name in (
        (1.0, 1, "whole epochs"),
        (0.6, 2, "left after 60%, from the third epoch on"),
    ):
        rules = eviction.rates(plan, 10, 0.5, [3 * _SIDE * _SIDE] * 2000, run_for)
        later = {rule: statistics.mean(each[first:]) for rule, each in rules.items()}
        shown = ", ".join(f"{rule} {each:.1%}" for rule, each in later.items())
        value = spread([later["ours"] / later["belady"]])
        what = f"part: room for half, hits over Belady's, simulated, {name}"
        figures.append(Figure("cache", what, value, "x", 0.98, "at least", shown))
    return figures


def disk(folder: str, n: int, rounds: int) -> list[Figure]:
    """In its first batches any loader makes slots; images from memory tell what that costs.

    So the epochs are longer than elsewhere here.
    """
    n = 16 * n
    with tempfile.TemporaryDirectory() as place:
        fresh.call(second_run, folder=folder, n=n, place=place)
        found = [fresh.call(second_run, folder=folder, n=n, place=place) for _ in range(rounds)]
    made = spread([each["made"] for each in found])
    value, plain = (spread([each[name] for each in found]) for name in ("ratio", "plain"))
    what = "disk: second run, first epoch over its second"
    return [
        Figure("cache", what, value, "x", 0.8, "at least", theirs=f"{plain} from memory"),
        Figure("cache", "disk: second run, samples decoded", made, "", 0),
    ]


def bucket(n: int, rounds: int) -> list[Figure]:
    n = max(n, 2000)
    slow, fast, long_slow, long_fast = [], [], [], []
    for _ in range(rounds):
        slow.append(fresh.call(bucket_rate, n=n, latency_s=_LATENCY_S))
        fast.append(fresh.call(bucket_rate, n=n, latency_s=0.0))
        long_slow.append(fresh.call(bucket_rate, n=_LONG * n, latency_s=_LATENCY_S))
        long_fast.append(fresh.call(bucket_rate, n=_LONG * n, latency_s=0.0))
    few = min(n, _NB_TORCH_REQUESTS)
    theirs = fresh.call(torch_bucket_rate, n=few, latency_s=_LATENCY_S)
    return [
        over("cache", "bucket: 30 ms a request over none", slow, fast, 0.9),
        over("cache", "bucket: 30 ms a request over none, long epoch", long_slow, long_fast, 0.9),
        Figure(
            "cache",
            "bucket: 30 ms a request, over torch DataLoader",
            ratios(slow, [theirs] * rounds),
            ours=str(spread(slow)),
            theirs=f"{theirs:.0f}",
        ),
    ]


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Rates are samples a second."""
    n, rounds = (256 if is_quick else 1024), nb_rounds(is_quick)
    with tempfile.TemporaryDirectory() as folder:
        cut_jpegs(Path(folder))
        return [
            *jpeg(folder, n, rounds),
            *two_ranks(folder, n, rounds),
            *part(n, rounds),
            *disk(folder, n, rounds),
            *bucket(n, rounds),
        ]


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "cache"])
