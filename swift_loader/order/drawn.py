"""What was drawn of a sampler in an epoch, and what a state holds of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from swift_loader.order.part import Taken

__all__ = ["Drawn", "Replay", "beginning_of", "saved_sampler"]


@dataclass(frozen=True)
class Replay:
    """What a state says of the sampler, read and checked."""

    saved: Mapping[str, Any]
    state: Any  # of the sampler's own `state_dict`
    generators: Mapping[str, Any]
    globals: Mapping[str, Any]
    checksum: int
    first: int | None = None  # checksum of the first batch of the run, of an epoch before
    batch: int | None = None  # checksum of the first batch of this epoch, if that was drawn
    length: int | None = None  # that the sampler said in this epoch
    carried: Mapping[str, Any] = field(default_factory=dict)  # global ones, if nothing was drawn


@dataclass(eq=False)
class Drawn:
    """What was drawn of an epoch that the training loop has begun."""

    taken: Taken
    replay: Replay | None = None  # where it goes on after a resume
    generators: Mapping[str, Any] = field(default_factory=dict)  # before it, plain
    globals: Mapping[str, Any] = field(default_factory=dict)  # before it, plain; those drawn from
    after: dict[int, tuple[int, Any]] = field(default_factory=dict)  # k batches: checksum, state
    first: int | None = None  # as in `Replay`
    length: int | None = None
    batches: Iterable[Any] = ()  # iterates those that were not asked for yet
    left: dict[int, Any] = field(
        default_factory=dict
    )  # how its generators stood, by how often it was asked


def saved_sampler(
    state: Any, generators: Any, known: Any, checksum: int, beginning: dict[str, Any]
) -> dict[str, Any]:
    return {
        "state": state,
        "generators": dict(generators),
        "globals": dict(known),
        "checksum": checksum,
        "beginning": beginning,
    }


def beginning_of(
    first: int | None,
    batch: int | None = None,
    length: int | None = None,
    carried: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    return {"first": first, "batch": batch, "length": length, "carried": dict(carried or {})}
