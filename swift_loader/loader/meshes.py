"""Ranks that are one consumer: who has the workers, and the part of a batch that a rank takes."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from swift_loader.batch.tree import map_leaves
from swift_loader.errors import BatchError, ConfigError, PlanMismatchError, refuse
from swift_loader.loader.delivering import Delivering
from swift_loader.loader.options import Config
from swift_loader.loader.who_splits import Look
from swift_loader.pipeline.item import Decoder
from swift_loader.pipeline.shell import Pipeline
from swift_loader.ranks.agreement import of_all_ranks
from swift_loader.ranks.mesh import ContextSlice, RankGroup, group_of
from swift_loader.transport.slots import OnMap
from swift_loader.worker.recipe import Size

__all__ = ["HostGroup", "cutter", "started"]

_LEADER = "swift_loader.sharing.group"  # an edge, which nothing here imports
_MEMBER = "swift_loader.sharing.group_member"


class Leading(Protocol):
    """`swift_loader.sharing.group.Leader`."""

    port: str

    @property
    def on_map(self) -> OnMap: ...

    def leading(self, pipeline: Pipeline) -> Delivering: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class HostGroup:
    """This rank's end of a group on one host: it has the workers, or takes from who has.

    Neither: it has workers of its own. `rank`: the one whose workers make its batches.
    """

    rank: int
    leader: Leading | None = None
    member: Delivering | None = None


def join_host_group(
    consumer: int, config: Config, decoder: Decoder | None, look: Look
) -> HostGroup:
    """Collective over all ranks. `look`: at the data set.

    Raises `PlanMismatchError` where a consumer has no rank, or the leader can't open its address;
    `ConfigError` where the ranks of a consumer would get other batches.
    """
    group = group_of(consumer, config.nb_consumer)
    wrong: ConfigError | None = None
    try:
        _check_same_batches(group, config, look)
    except ConfigError as error:
        wrong = error  # other ranks may have other options, and wait for this one
    shares = not config.in_process and not look.waits and len(group.ranks) > 1
    leader: Leading | None = None
    said = "", ""
    if shares and wrong is None and group.rank == group.leader:
        try:
            leader = importlib.import_module(_LEADER).Leader(len(group.ranks), decoder)
            said = leader.port, ""
        except Exception as error:  # noqa: BLE001 - the others must hear of it
            said = "", f"{type(error).__name__}: {error}"
    everybody = of_all_ranks((*said, look.likeness))
    port, problem, _ = everybody[group.leader]
    if wrong is not None:
        raise wrong
    if problem:
        raise PlanMismatchError(f"rank {group.leader} can't share its batches: {problem}")
    if leader is not None:
        return HostGroup(group.rank, leader=leader)
    if not port:
        return HostGroup(group.rank)
    others = [rank for rank in group.ranks if everybody[rank][2] != everybody[group.leader][2]]
    if others:
        warnings.warn(
            f"the stream of rank {group.leader} is another one than those of ranks {others}, which "
            "are the same consumer and get its batches. If it was cut by rank, samples are lost: "
            "cut it by the place in the mesh, or leave that to the loader",
            RuntimeWarning,
            stacklevel=4,
        )
    return HostGroup(group.leader, member=importlib.import_module(_MEMBER).Member(port, decoder))


def _check_same_batches(group: RankGroup, config: Config, look: Look) -> None:
    """Raises `ConfigError` unless the ranks of each consumer get the same batches."""
    if look.by_all_ranks and group.nb_ranks > config.nb_consumer:
        raise ConfigError(f"several ranks are one consumer: {look.by_all_ranks}")
    several = group.consumer if look.waits and len(group.ranks) > 1 else group.spread
    if several is not None and not config.in_order and not config.in_process:
        refuse("in_order", False, f"consumer {several} has ranks on several hosts, or of a stream "
               "that needs workers on each rank; those are ready in other orders, and all of its "
               "ranks must get the same batches: leave it out")  # fmt: skip


def started(
    consumer: int,
    config: Config,
    decoder: Decoder | None,
    look: Look,
    start: Callable[[HostGroup], Size | None],
) -> Size | None:
    """Join the group, and start this rank's part of it; the data set's size, as the workers say.

    None where another rank has the workers, and they could not be started: that rank says why.
    Collective over all ranks, also where one of them fails.
    """
    failure: BaseException | None = None
    size: Size | None = None
    group: HostGroup | None = None
    try:
        group = join_host_group(consumer, config, decoder, look)
        size = start(group)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - raised when the others know
        failure = error
    sizes = of_all_ranks(size)
    if failure is not None:
        raise failure
    return sizes[group.rank] if group is not None else None


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
