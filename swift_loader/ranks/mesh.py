"""Ranks that need the same batch: which consumer a rank is, and which ranks share its host.

Ranks of one tensor-, pipeline- or context-parallel group are one consumer. Every rank of
`torch.distributed` takes part in these calls.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from swift_loader.errors import ConfigError, PlanMismatchError, refuse
from swift_loader.ranks.agreement import of_all_ranks

__all__ = ["ContextSlice", "RankGroup", "check_slice", "consumer_of", "group_of"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")

ContextSlice = tuple[int, int, int]
"""``(dim, i, n)``: part `i` of `n` of every tensor, along `dim`."""


@dataclass(frozen=True)
class RankGroup:
    """The ranks of one consumer on one host, ascending; `rank` is this process's.

    `consumer`: which they are. `nb_ranks`: of all consumers on all hosts. `spread`: the first
    consumer, if there is one, whose ranks are on several hosts.
    """

    consumer: int
    nb_ranks: int
    rank: int
    ranks: tuple[int, ...]
    spread: int | None = None

    @property
    def leader(self) -> int:
        """The rank whose workers make the batches."""
        return self.ranks[0]


def consumer_of(mesh: Any, index: int | None, nb_consumer: int) -> int:
    """The consumer that this rank is: its place in a mesh of one dimension.

    Raises `ConfigError` where the mesh is no such thing, or doesn't have `nb_consumer` places.
    """
    if index is not None:
        refuse("consumer_index", index, "mesh says it; give one of them")
    if not (dist.is_available() and dist.is_initialized()):
        refuse("mesh", mesh, "call torch.distributed.init_process_group before start()")
    if not hasattr(mesh, "get_local_rank") or not hasattr(mesh, "size"):
        refuse("mesh", mesh, "give a DeviceMesh of torch, such as device_mesh['dp']")
    if mesh.ndim != 1:
        refuse("mesh", mesh, f"it has {mesh.ndim} dimensions: give the one of the ranks that get "
               "different batches, such as device_mesh['dp'], or several flattened to one "
               "(device_mesh['dp', 'ep']._flatten())")  # fmt: skip
    if mesh.size() != nb_consumer:
        raise ConfigError(
            f"nb_consumer={nb_consumer}, and the mesh has {mesh.size()} places in the dimension of "
            "the ranks that get different batches: they must be the same"
        )
    return int(mesh.get_local_rank())


def group_of(consumer: int, nb_consumer: int) -> RankGroup:
    """The ranks on this host that are the same consumer. Collective over all ranks.

    Raises `PlanMismatchError` where a consumer has no rank.
    """
    places = of_all_ranks((consumer, _host()))
    missing = sorted(set(range(nb_consumer)) - {number for number, _ in places})
    if missing:
        raise PlanMismatchError(
            f"no rank is consumer {missing}: the mesh's other dimensions must be of all "
            f"{dist.get_world_size()} ranks"
        )
    mine = places[dist.get_rank()]
    ranks = tuple(rank for rank, place in enumerate(places) if place == mine)
    on_hosts = Counter(number for number, _ in set(places))
    spread = min((number for number, count in on_hosts.items() if count > 1), default=None)
    return RankGroup(consumer, len(places), dist.get_rank(), ranks, spread)


def check_slice(value: Any) -> ContextSlice | None:
    """What `context_slice` is. Raises `ConfigError`."""
    if value is None:
        return None
    whole = isinstance(value, tuple) and len(value) == 3 and all(type(n) is int for n in value)
    if not whole or not 0 <= value[1] < value[2] or value[0] < 0:
        refuse("context_slice", value, "give (dim, i, n): part i of n along dim")
    dim, part, count = value
    return dim, part, count


def _host() -> str:
    """Processes for which it is the same can share memory, by a socket in the same directory."""
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = ""
    return " ".join((socket.gethostname(), boot, os.environ.get("XDG_RUNTIME_DIR", "")))
