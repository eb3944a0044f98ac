"""What ranks must have alike of `Packed` and `Mixture`; the plan knows lengths alone."""

from __future__ import annotations

from typing import Any

from swift_loader.sources.mixture import Mixture
from swift_loader.sources.packed import Packed

__all__ = ["to_be_alike"]


def to_be_alike(dataset: Any) -> dict[str, Any]:
    """By name; nothing of any other data set, nor of one that only workers build."""
    if isinstance(dataset, Packed):
        return dataset.facts()
    if not isinstance(dataset, Mixture):
        return {}
    found: dict[str, Any] = {"with_source": dataset.with_source}
    for source, built in dataset.built().items():
        found.update({f"{source}: {name}": value for name, value in to_be_alike(built).items()})
    return found
