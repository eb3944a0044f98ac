"""Data pipe graphs on two workers: beside torchdata's DataLoader2, and torch's DataLoader.

The same graph for all three, of pipes that torch itself has (`parse_csv` is torchdata's, and ours).
torchdata is measured where a release that still has ``dataloader2`` is found, which is up to 0.9;
the table of rates wants a later one, so put it into a folder of its own and that on `PYTHONPATH`::

    pip install --target td09 --no-deps torchdata==0.9.0
    PYTHONPATH=td09 python -m benchmarks --only data-pipes

The first epoch, which starts the processes, is not in the figures.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter, sleep, thread_time
from typing import Any

import numpy as np

from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.spread import ratios, spread

OURS, TORCHDATA, TORCH = "swift_loader", "torchdata", "torch DataLoader"
_NB_WORKER = 2
_NB_EPOCH = 3
_NB_QUICK_EPOCH = 1
_ARRAY_BYTES = 150 * 1024
_COMPUTE_S = 0.001
_WAIT_S = 0.010


# ---- what the graphs do


def _same(item: Any) -> Any:
    return item


def _tensor(rows: Any) -> Any:
    import torch

    return torch.tensor(rows)


def _array(item: int) -> Any:
    return np.full(_ARRAY_BYTES, item % 256, np.uint8)


def _numbers(row: list[str]) -> list[float]:
    return [float(value) for value in row]


def _compute(item: int) -> int:
    until_s = thread_time() + _COMPUTE_S
    while thread_time() < until_s:
        pass
    return item


def _wait(item: int) -> int:
    sleep(_WAIT_S)
    return item


def _batched(source: Any) -> Any:
    return source.sharding_filter().map(_same).batch(32)


def _collated(source: Any) -> Any:
    return _batched(source).collate(_tensor)


def _csv(files: Any) -> Any:
    rows = files.open_files(encoding="utf-8").parse_csv().shuffle().sharding_filter()
    return rows.map(_numbers).batch(8)


def _plain(source: Any) -> Any:
    return source.sharding_filter().map(_same)


def _arrays(source: Any) -> Any:
    return source.sharding_filter().map(_array)


def _computed(source: Any) -> Any:
    return source.sharding_filter().map(_compute)


def _waited(source: Any) -> Any:
    return source.sharding_filter().map(_wait)


@dataclass(frozen=True)
class Case:
    """A graph over `nb_items` numbers (or two files of so many rows together), and its bars."""

    name: str
    graph: Callable[[Any], Any]
    nb_items: int
    over_torchdata: float | None = 4.0
    over_torch: float | None = 1.2
    has_files: bool = False
    per_worker: Callable[[int], Any] | None = None  # of slow items: what one worker does


CASES = (
    Case("lists of 32", _batched, 50_000),
    Case("lists of 32, as a tensor", _collated, 50_000),
    Case("one int a message", _plain, 20_000),
    Case("150 KB of numpy a message", _arrays, 5_000),
    Case("CSV, 2 files, batches of 8", _csv, 50_000, has_files=True),
    Case("1 ms of CPU an item", _computed, 1_000, None, None, per_worker=_compute),
    Case("10 ms of waiting an item", _waited, 300, None, None, per_worker=_wait),
)


# ---- the sides


@contextmanager
def _ours(case: Case, source: Any) -> Iterator[Iterable[Any]]:
    from swift_loader.dataloader2 import DataLoader2, MultiProcessingReadingService
    from swift_loader.dataloader2.iter import IterableWrapper

    graph = case.graph(IterableWrapper(source, deepcopy=False))
    loader: Any = DataLoader2(graph, reading_service=MultiProcessingReadingService(_NB_WORKER))
    with loader:
        yield loader


@contextmanager
def _torchdata(case: Case, source: Any) -> Iterator[Iterable[Any]]:
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
    from torchdata.datapipes.iter import IterableWrapper

    graph = case.graph(IterableWrapper(source, deepcopy=False))
    service = MultiProcessingReadingService(num_workers=_NB_WORKER)
    loader = DataLoader2(graph, reading_service=service)
    yield loader
    loader.shutdown()


@contextmanager
def _torch(case: Case, source: Any) -> Iterator[Iterable[Any]]:
    from torch.utils.data import DataLoader

    from swift_loader.dataloader2.iter import IterableWrapper

    graph = case.graph(IterableWrapper(source, deepcopy=False))
    yield DataLoader(
        graph,
        batch_size=None,
        num_workers=_NB_WORKER,
        persistent_workers=True,
        collate_fn=_same,
        shuffle=True if case.has_files else None,
    )


_SIDES = {OURS: _ours, TORCHDATA: _torchdata, TORCH: _torch}


def epochs(side: str, case: Case, files: list[str], nb_epoch: int) -> dict[str, float]:
    """Items of the source a second, over the median epoch."""
    import torch

    torch.set_num_threads(1)
    source = files if case.has_files else range(case.nb_items)
    times_s = []
    with _SIDES[side](case, source) as loader:
        for _ in range(1 + nb_epoch):
            start_s = perf_counter()
            for _ in loader:
                pass
            times_s.append(perf_counter() - start_s)
    return {"items_per_s": case.nb_items / median(times_s[1:])}


def limit(case: Case) -> dict[str, float]:
    """The same items by plain loops in as many processes, side by side, which share nothing."""
    with ProcessPoolExecutor(_NB_WORKER, get_context("spawn")) as pool:
        shares = [case.nb_items // _NB_WORKER] * _NB_WORKER
        list(pool.map(_loop, [case] * _NB_WORKER, [1] * _NB_WORKER))  # the processes are there
        start_s = perf_counter()
        list(pool.map(_loop, [case] * _NB_WORKER, shares))
        return {"items_per_s": sum(shares) / (perf_counter() - start_s)}


def _loop(case: Case, nb_items: int) -> None:
    assert case.per_worker is not None
    for item in range(nb_items):
        case.per_worker(item)


# ---- the figures


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Ours over each of the others, and over the limit where the items are slow."""
    nb_epoch = _NB_QUICK_EPOCH if is_quick else _NB_EPOCH
    sides = [OURS, TORCH]
    if find_spec("torchdata") is not None and find_spec("torchdata.dataloader2") is not None:
        sides.insert(1, TORCHDATA)
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        files = _write_files(Path(folder), CASES[0].nb_items)
        for case in CASES:
            figures += _figures(case, sides, files, nb_epoch, is_quick)
    return figures


def _figures(
    case: Case, sides: list[str], files: list[str], nb_epoch: int, is_quick: bool
) -> list[Figure]:
    probes = {
        side: partial(epochs, side=side, case=case, files=files, nb_epoch=nb_epoch)
        for side in sides
    }
    if case.per_worker is not None:
        probes["limit"] = partial(limit, case=case)
    rounds = measure_in_turn(f"data-pipes, {case.name}", probes, is_quick)
    ours = rounds.column(OURS, "items_per_s")
    figures = []
    for side, bar in ((TORCHDATA, case.over_torchdata), (TORCH, case.over_torch)):
        theirs = rounds.column(side, "items_per_s")
        if ours and theirs:
            figures.append(_figure(case, f"over {side}", ours, theirs, bar))
    most = rounds.column("limit", "items_per_s")
    if ours and most:
        figures.append(_figure(case, f"over {_NB_WORKER} such processes", ours, most, 0.9))
    return figures


def _figure(
    case: Case, what: str, ours: list[float], theirs: list[float], bar: float | None
) -> Figure:
    return Figure(
        "data-pipes",
        f"{case.name}: {what}",
        ratios(ours, theirs),
        bar=bar,
        bound="at least",
        ours=f"{spread(ours).median:,.0f} items/s",
        theirs=f"{spread(theirs).median:,.0f} items/s",
    )


def _write_files(folder: Path, nb_rows: int) -> list[str]:
    paths = []
    for number in range(2):
        path = folder / f"train{number}.csv"
        path.write_text("".join(f"{number},{row},{2 * row}\n" for row in range(nb_rows // 2)))
        paths.append(str(path))
    return paths


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "data-pipes"])
