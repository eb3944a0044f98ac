"""Ranks that are one consumer: who has the workers, and the part of a batch that a rank takes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from swift_loader.batch.tree import map_leaves
from swift_loader.errors import BatchError, PlanMismatchError
from swift_loader.loader.delivering import Delivering
from swift_loader.loader.options import Config
from swift_loader.pipeline.shell import Pipeline
from swift_loader.ranks.agreement import of_all_ranks
from swift_loader.ranks.mesh import ContextSlice, group_of
from swift_loader.transport.slots import OnMap

__all__ = ["HostGroup", "cutter", "join_host_group"]

_GROUP = "swift_loader.sharing.group"  # an edge, which nothing here imports


class Leading(Protocol):
    """`swift_loader.sharing.group.Leader`."""

    port: str

    @property
    def on_map(self) -> OnMap: ...

    def leading(self, pipeline: Pipeline) -> Delivering: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class HostGroup:
    """This rank's end of a group on one host: it has the workers, or takes from who has."""

    leader: Leading | None = None
    member: Delivering | None = None


def join_host_group(consumer: int, config: Config, nb_samples: int | None) -> HostGroup | None:
    """None: this rank has workers of its own. Collective over all ranks.

    One rank's workers can make the batches of others where all know which numbers come: of a data
    set whose length is known before the start, by the plan.

    Raises `PlanMismatchError` where a consumer has no rank, or the leader can't open its address.
    """
    group = group_of(consumer, config.nb_consumer)
    by_users = config.by_sampler or config.batch_decoder is not None
    known = nb_samples is not None and config.in_order and not by_users
    shares = known and not config.in_process and len(group.ranks) > 1
    leader: Leading | None = None
    said = "", ""
    if shares and group.rank == group.leader:
        try:
            leader = importlib.import_module(_GROUP).Leader(len(group.ranks))
            said = leader.port, ""
        except Exception as error:  # noqa: BLE001 - the others must hear of it
            said = "", f"{type(error).__name__}: {error}"
    port, problem = of_all_ranks(said)[group.leader]
    if problem:
        raise PlanMismatchError(f"rank {group.leader} can't share its batches: {problem}")
    if leader is not None:
        return HostGroup(leader=leader)
    return HostGroup(member=importlib.import_module(_GROUP).Member(port)) if port else None


def cutter(piece: ContextSlice | None) -> Callable[[Any], Any] | None:
    """Takes part `i` of `n` along `dim` of every tensor and array that has it: views.

    Raises `BatchError` where that does not divide.
    """
    if piece is None:
        return None
    dim, part, count = piece

    def cut(leaf: Any) -> Any:
        if not isinstance(leaf, (torch.Tensor, np.ndarray)) or leaf.ndim <= dim:
            return leaf
        size, rest = divmod(leaf.shape[dim], count)
        if rest:
            raise BatchError(
                f"context_slice={piece}: a {type(leaf).__name__} of shape {tuple(leaf.shape)} can't"
                f" be cut into {count} equal parts along dimension {dim}; pad it in collate_fn"
            )
        return leaf[(slice(None),) * dim + (slice(part * size, (part + 1) * size),)]

    return lambda batch: map_leaves(cut, batch)
