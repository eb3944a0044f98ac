"""How many consumers a loader has where a framework knows the number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch.utils.data import DistributedSampler

from swift_loader.errors import refuse
from swift_loader.loader.given import given_to
from swift_loader.loader.loader import SwiftLoader

__all__ = ["has_its_own_state", "in_place_of", "is_told", "with_consumers"]

Batch = TypeVar("Batch")

_EACH_ITS_OWN = ("sampler", "stream", "shards")  # orders: the state of a rank tells of no other


def with_consumers(
    loader: SwiftLoader[Batch], world_size: int, who: str, **others: Any
) -> SwiftLoader[Batch]:
    """The loader, or one like it with a consumer for each rank if nobody said how many it has.

    A loader that was told of one consumer keeps it: each rank gets all of its data set. `others`:
    further options of a loader that takes its place.
    """
    if loader.nb_consumer in (1, world_size) and (world_size == 1 or is_told(loader)):
        return loader
    if loader.nb_consumer != 1 or loader.started:
        refuse(
            "nb_consumer",
            loader.nb_consumer,
            f"{who} has {world_size} ranks; leave it out, or give the number of ranks",
        )
    _check_is_dealt_out(loader, world_size, who)
    return in_place_of(loader, nb_consumer=world_size, **others)


def is_told(loader: SwiftLoader[Any]) -> bool:
    """Whether the script said how many consumers the loader has."""
    return "nb_consumer" in given_to(loader)


def has_its_own_state(loader: SwiftLoader[Any], state: Mapping[str, Any]) -> bool:
    """Whether this `state` of the loader tells nothing of the other ranks."""
    return loader.nb_consumer == 1 or not loader.in_order or state["order"] in _EACH_ITS_OWN


def in_place_of(loader: SwiftLoader[Batch], **changes: Any) -> SwiftLoader[Batch]:
    """Another loader with these options; the one that was given is closed."""
    other: SwiftLoader[Batch] = loader.with_options(**changes)
    loader.close()
    return other


def _check_is_dealt_out(loader: SwiftLoader[Any], world_size: int, who: str) -> None:
    """A sampler made for one process gives all of its indices on every rank: an epoch of each rank
    would be the whole one. Of torch's loader, Lightning deals them out.
    """
    names = given_to(loader)
    name = next((n for n in ("sampler", "batch_sampler") if n in names), None)
    if name is None or (given := names[name]) is None:
        return
    if not isinstance(getattr(given, "sampler", given), DistributedSampler):
        refuse(
            name,
            given,
            f"{who} has {world_size} ranks, and each would get all that it gives. Take torch's "
            "DistributedSampler; or, if it gives this rank's part already, say so with "
            f"nb_consumer={world_size}",
        )
