"""Rounds of the long forms, each with a seed of its own that repeats it."""

from __future__ import annotations

import os
from collections.abc import Iterator

__all__ = ["rounds"]


def rounds(count: int) -> Iterator[int]:
    """The seeds of so many rounds; ``CHAOS_ROUNDS`` and ``CHAOS_SEED`` say otherwise.

    Each is printed, so that the report of a failed test ends with its seed.
    """
    first = int(os.environ.get("CHAOS_SEED", "0"))
    for seed in range(first, first + int(os.environ.get("CHAOS_ROUNDS", count))):
        print(f"CHAOS_SEED={seed} CHAOS_ROUNDS=1", flush=True)
        yield seed
