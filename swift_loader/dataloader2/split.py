"""Which part of a graph of pipes runs where, under a reading service with workers.

A graph is cut at up to two pipes:

```
 dispatched ──▶ replicated (one copy a worker) ──▶ kept (training process)
```

*dispatched*: everything up to the lowest pipe through which all items of all
`sharding_round_robin_dispatch` go. *replicated*: the front-most part in which every pipe may be
copied (`is_replicable()`, true where a pipe does not say). *kept*: what can't be copied, and all
behind it. In each part a `Placeholder` stands for the part before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterDataPipe
from torch.utils.data.graph_settings import apply_sharding

from swift_loader.dataloader2.graph import (
    DataPipe,
    is_dispatcher,
    is_sharding,
    list_dps,
    replace_dp,
    traverse_dps,
)
from swift_loader.dataloader2.iter.flow import LengthSetter
from swift_loader.dataloader2.iter.sharding import SHARDING_PRIORITIES

__all__ = [
    "Placeholder",
    "Split",
    "apply_worker_sharding",
    "dispatching_pipe",
    "length_over_workers",
    "non_dispatching_branches",
    "replicable_pipe",
    "split_for_workers",
]


class Placeholder(IterDataPipe[Any]):
    """Stands for a part of the graph that runs in another process, until that is connected."""

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError(
            "This part of the graph of pipes runs elsewhere and is not connected yet"
        )


@dataclass(frozen=True)
class Split:
    """The parts of a graph, each named by its last pipe; `None` where there is no such part.

    `replicated` contains a `Placeholder` for `dispatched`, and `kept` one for `replicated`.
    """

    dispatched: DataPipe | None
    replicated: DataPipe
    kept: DataPipe | None


def dispatching_pipe(datapipe: DataPipe) -> DataPipe | None:
    """The lowest pipe of the graph through which everything from every dispatcher goes.

    `None` without a dispatcher. For one dispatcher it is that itself.
    """
    pipes = list_dps(traverse_dps(datapipe))
    dispatchers = [dp for dp in pipes if is_dispatcher(dp)]
    if not dispatchers:
        return None
    common = [dp for dp in pipes if not _reaches(datapipe, dispatchers, without=dp)]
    # All of these lie on one line, so the lowest is the one that none of the others is upstream of.
    return min(common, key=lambda dp: len(list_dps(traverse_dps(dp))))


def _reaches(last: DataPipe, targets: list[DataPipe], without: DataPipe) -> bool:
    """Do items get from any of `targets` to `last` by a way that does not go through `without`?"""
    seen: set[int] = {id(without)}
    graph = traverse_dps(last)
    ahead = list(graph.values())
    while ahead:
        dp, inputs = ahead.pop()
        if id(dp) in seen:
            continue
        if any(dp is target for target in targets):
            return True
        seen.add(id(dp))
        ahead.extend(inputs.values())
    return False


def replicable_pipe(datapipe: DataPipe) -> DataPipe:
    """The last pipe of the one front-most part that can be copied into workers.

    `AssertionError` where there is none, or where several such parts meet in a pipe that can't be
    copied.
    """
    found = {id(dp): dp for dp in _replicable_ends(datapipe)}
    assert len(found) == 1, (
        "A graph of pipes for workers needs exactly one part that can be copied into them, "
        f"found {len(found)}: {list(found.values())}. A pipe that says `is_replicable()` False "
        "(fullsync, pin_memory) must come after all branches have been joined."
    )
    (end,) = found.values()
    return end


def _replicable_ends(datapipe: DataPipe) -> Iterator[DataPipe]:
    graph = traverse_dps(datapipe)
    if all(_is_replicable(dp) for dp in list_dps(graph)):
        yield datapipe
        return
    for dp, _ in graph[id(datapipe)][1].values():
        yield from _replicable_ends(dp)


def _is_replicable(dp: DataPipe) -> bool:
    asked = getattr(dp, "is_replicable", None)
    return True if asked is None else bool(asked())


def split_for_workers(datapipe: DataPipe) -> Split:
    """Cut the graph (in place) into what is dispatched, replicated, kept.

    `AssertionError` as of `replicable_pipe`; `RuntimeError` where a dispatcher comes after a pipe
    that can't be copied.
    """
    replicated = replicable_pipe(datapipe)
    dispatched = dispatching_pipe(replicated)
    if dispatching_pipe(datapipe) is not dispatched:
        raise RuntimeError(
            "sharding_round_robin_dispatch comes after a pipe that stays in the training process "
            "(fullsync, pin_memory, ...), so it can't be run for the workers. Put it before."
        )
    kept = None if replicated is datapipe else _cut(datapipe, replicated)
    if dispatched is not None:
        replicated = _cut(replicated, dispatched)
    return Split(dispatched, replicated, kept)


def _cut(datapipe: DataPipe, at: DataPipe) -> DataPipe:
    """The graph with a placeholder where `at` stood."""
    ((last, _),) = replace_dp(traverse_dps(datapipe), at, Placeholder()).values()
    return last


def non_dispatching_branches(datapipe: DataPipe) -> list[DataPipe]:
    """The last pipes of those parts of a replicated graph that are not behind the placeholder."""
    graph = traverse_dps(datapipe)
    if not any(isinstance(dp, Placeholder) for dp in list_dps(graph)):
        return [datapipe]
    found = {
        id(end): end
        for dp, _ in graph[id(datapipe)][1].values()
        for end in non_dispatching_branches(dp)
    }
    return list(found.values())


def apply_worker_sharding(datapipe: DataPipe, nb_worker: int, worker_index: int) -> bool:
    """Make a worker's copy yield its share, `worker_index` of `nb_worker`. Is there one?

    Branches behind a dispatched part get their share by dispatching already and are left alone.
    Counts as the fast index beside ranks (`SHARDING_PRIORITIES`): shard rank * nb_worker +
    worker_index.
    """
    sharded = False
    for branch in non_dispatching_branches(datapipe):
        sharded = sharded or any(is_sharding(dp) for dp in list_dps(traverse_dps(branch)))
        apply_sharding(branch, nb_worker, worker_index, SHARDING_PRIORITIES.MULTIPROCESSING)
    return sharded


def length_over_workers(split: Split, nb_worker: int, whole: bool = False) -> int | None:
    """How many items all workers together yield in an epoch; `None` where that is not known.

    `whole`: how many the kept part makes of them. Applies the shards to the copy that is given.
    """
    if split.dispatched is not None:
        return None
    length = 0
    try:
        for worker in range(nb_worker):
            apply_worker_sharding(split.replicated, nb_worker, worker)
            length += len(split.replicated)
        if whole and split.kept is not None:
            graph = traverse_dps(split.kept)
            (placeholder,) = (dp for dp in list_dps(graph) if isinstance(dp, Placeholder))
            ((kept, _),) = replace_dp(
                graph, placeholder, LengthSetter(placeholder, length)
            ).values()
            length = len(kept)
    except (TypeError, NotImplementedError):
        return None
    return length
