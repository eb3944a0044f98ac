"""The same work through torch's `DataLoader` and through `SwiftLoader`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from swift_loader import SwiftLoader
from tests.differential.outcome import Outcome, outcome, raised

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def through_torch(
    dataset: Any, *, workers: int = 2, ranks: int = 1, context: str = "fork", **options: Any
) -> list[Outcome]:
    """One epoch of each rank, rank by rank. `options` are `DataLoader`'s; see `_of_rank`."""
    found = []
    for rank in range(ranks):
        given = _of_rank(options, rank)
        sampled = "sampler" in given or "batch_sampler" in given
        if ranks > 1 and not sampled and not isinstance(dataset, IterableDataset):
            given["sampler"] = DistributedSampler(
                dataset, ranks, rank, shuffle=False, drop_last=given.get("drop_last", False)
            )
        with rank_variables(rank, ranks):
            loader: DataLoader[Any] = DataLoader(
                dataset,
                num_workers=workers,
                multiprocessing_context=context if workers else None,
                **given,
            )
            found.append(outcome(loader))
    return found


def through_ours(
    dataset: Any,
    *,
    workers: int = 2,
    ranks: int = 1,
    drop_last: bool = False,
    staged: bool = False,
    resumed_after: int | None = None,
    made: str = "written out",
    **options: Any,
) -> list[Outcome]:
    """One epoch of each rank, rank by rank, with torch's names for what has one.

    `staged`: batches pass through `to_device` on their way. `resumed_after`: so many batches are
    taken, the state is saved, and another loader goes on with it. `made`: by ``from_dataloader``.
    """
    if drop_last:
        options["tail"] = "drop"
    found = []
    for rank in range(ranks):
        with rank_variables(rank, ranks):

            def build(rank: int = rank) -> SwiftLoader:
                return _build(dataset, workers, ranks, made, _of_rank(options, rank))

            def start(loader: SwiftLoader, rank: int = rank) -> None:
                loader.start(rank, torch.device("cpu"), _same if staged else None)

            try:
                found.append(_whole(build, start, resumed_after))
            except Exception as error:  # noqa: BLE001 - `validate` tells it at construction
                found.append(Outcome((raised(error),)))
    return found


def _whole(build: Any, start: Any, resumed_after: int | None) -> Outcome:
    with build() as loader:
        start(loader)
        if resumed_after is None:
            return outcome(loader)
        first = outcome(loader, resumed_after)
        if len(first.batches) < resumed_after:
            return first  # the epoch has ended
        state = loader.state_dict()
    with build() as loader:
        loader.load_state_dict(state)
        start(loader)
        return Outcome(first.batches + outcome(loader).batches, first.length)


def _build(
    dataset: Any, workers: int, ranks: int, made: str, options: dict[str, Any]
) -> SwiftLoader:
    if made == "from_dataloader":
        theirs = dict(options)
        own = {name: theirs.pop(name) for name in _OWN if name in theirs}
        drop_last = own.get("tail") == "drop"
        dataloader: DataLoader[Any] = DataLoader(
            dataset, num_workers=workers, drop_last=drop_last, **theirs
        )
        return SwiftLoader.from_dataloader(dataloader, nb_consumer=ranks, **own)
    return SwiftLoader.from_dataset(
        dataset, worker_per_consumer=workers, nb_consumer=ranks, **options
    )


_OWN = (
    "tail",
    "threads_per_worker",
    "remote_workers",
    "remote_key",
    "start_method",
    "stream_split",
    "validate",
)


def _of_rank(options: dict[str, Any], rank: int) -> dict[str, Any]:
    """`options`, with a sampler made anew for each loader where a function of the rank makes it."""
    samplers = ("sampler", "batch_sampler")
    return {
        name: value(rank) if name in samplers and callable(value) else value
        for name, value in options.items()
    }


def _same(batch: Any, device: torch.device) -> Any:
    return batch


@contextmanager
def rank_variables(rank: int, ranks: int) -> Iterator[None]:
    """What ``torchrun`` sets, where there are several ranks."""
    before = {name: os.environ.get(name) for name in _RANK_VARIABLES}
    if ranks > 1:
        os.environ.update(dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)))
        os.environ.update(dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
