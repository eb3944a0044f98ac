"""All consumers of a run must hold the same plan although each builds its own loader.

With `torch.distributed` initialised and one consumer a rank, `start()` asks everybody; a difference
would otherwise show as samples seen twice, or as an all-reduce that hangs in the last step.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
import torch.distributed

from swift_loader.errors import PlanMismatchError

__all__ = [
    "EPOCH",
    "FIRST_BATCH",
    "SAMPLES",
    "agree_on_plan",
    "agree_on_seed",
    "is_collective",
    "known_rank",
    "of_all_ranks",
    "own_index",
]

EPOCH, FIRST_BATCH = "the epoch", "the first batch"  # facts in which ranks may differ
SAMPLES = "the samples"  # and so they may in this one: a digest

T = TypeVar("T")


def is_collective(nb_consumer: int) -> bool:
    """Whether every rank of the initialised process group is a consumer of this loader."""
    return (
        nb_consumer > 1
        and torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() == nb_consumer
    )


def own_index(nb_consumer: int) -> int | None:
    """Which consumer this process is, where that needs no telling; None: nobody knows."""
    if nb_consumer == 1:
        return 0
    known = known_rank()
    return known[0] if known is not None and known[1] == nb_consumer else None


def known_rank() -> tuple[int, int] | None:
    """This process's rank and the number of ranks; None where nothing says that there are ranks.

    By `torch.distributed`, or as long as that is not initialised by what `torchrun` has set.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        rank, nb_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return (rank, nb_ranks) if 0 <= rank < nb_ranks else None


def agree_on_seed() -> int:
    """Rank 0's `torch.initial_seed()`, on all ranks. Collective."""
    box: list[Any] = [torch.initial_seed() % 2**63]
    torch.distributed.broadcast_object_list(box, src=0)
    return int(box[0])


def of_all_ranks(mine: T) -> list[T]:
    """What each rank gave, by rank. Collective."""
    everybody: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everybody, mine)
    return everybody


def agree_on_plan(facts: Mapping[str, Any], failure: BaseException | None) -> None:
    """Compare `facts` over all ranks. Collective, also for a rank whose start has failed.

    Raises `PlanMismatchError` that names each difference and its ranks, or the rank that failed.
    Warns where ranks begin at different places: in most trainings, these would not end together.
    And where their data sets hold different samples: each deals out its own, as if it were whole.
    """
    mine = {"failure": None if failure is None else f"{type(failure).__name__}: {failure}"}
    mine.update(facts)
    everybody = of_all_ranks(mine)
    if failure is not None:
        return
    failed = [f"rank {r}: {f['failure']}" for r, f in enumerate(everybody) if f["failure"]]
    if failed:
        raise PlanMismatchError("other consumers could not start:\n" + "\n".join(failed))
    differences: list[str] = []
    places: list[str] = []
    unlike: list[int] = []
    for name, value in facts.items():
        others = {r: f.get(name) for r, f in enumerate(everybody) if f.get(name) != value}
        if others and name == SAMPLES:
            unlike = list(others)
        elif others:
            rank, other = next(iter(others.items()))
            ranks = ", ".join(map(str, others))
            (places if name in (EPOCH, FIRST_BATCH) else differences).append(
                f"{name} is {value!r} on rank {torch.distributed.get_rank()} and {other!r} on "
                f"rank {rank} (it differs on ranks {ranks})"
            )
    if differences:
        raise PlanMismatchError(
            "the consumers hold different plans, so samples would be seen twice or never:\n"
            + "\n".join(differences)
            + "\nBuild the loader with the same arguments on every rank"
        )
    if places:
        warnings.warn(
            "the consumers go on at different places, so their epochs end after different numbers "
            f"of steps, and a collective call may hang there: {'; '.join(places)}. If they should "
            "be in step, load states of the same step on every rank",
            RuntimeWarning,
            stacklevel=3,
        )
    if unlike:
        warnings.warn(
            f"the data set of rank {torch.distributed.get_rank()} holds other samples than that of "
            f"rank {unlike[0]} (it differs from ranks {', '.join(map(str, unlike))}). Each rank "
            "gets a part of its own data set, and nobody gets the rest. If it is the rank's part "
            "already, give nb_consumer=1; else give every rank the same data set, split and "
            "shuffled with the same seed",
            RuntimeWarning,
            stacklevel=3,
        )
