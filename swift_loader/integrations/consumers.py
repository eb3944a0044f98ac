"""How many consumers a loader has where a framework knows the number of ranks."""

from __future__ import annotations

from typing import TypeVar

from swift_loader.errors import refuse
from swift_loader.loader.loader import SwiftLoader

__all__ = ["with_consumers"]

Batch = TypeVar("Batch")


def with_consumers(loader: SwiftLoader[Batch], world_size: int, who: str) -> SwiftLoader[Batch]:
    """The loader, or one like it with a consumer for each rank if it was made for one alone."""
    if loader.nb_consumer == world_size:
        return loader
    if loader.nb_consumer != 1 or loader.started:
        refuse(
            "nb_consumer",
            loader.nb_consumer,
            f"{who} has {world_size} ranks; leave it out, or give the number of ranks",
        )
    other = loader.with_options(nb_consumer=world_size)
    loader.close()
    return other
