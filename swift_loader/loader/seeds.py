"""The seed of a run where no option says it."""

from __future__ import annotations

import os

import torch

from swift_loader.errors import refuse
from swift_loader.loader.checks import MAX_SEED
from swift_loader.ranks.agreement import known_rank

__all__ = ["chosen_seed", "default_seed", "seed_of"]

_FIXED = 0  # never the clock, or two consumers would disagree
_CHOSEN_BELOW = 2**32  # as numpy wants it; a process that nobody seeds has 64 random bits


def chosen_seed(option: int | None) -> int | None:
    """The seed that the user chose: the option, else `PL_GLOBAL_SEED`, else None."""
    if option is not None:
        return option
    text = os.environ.get("PL_GLOBAL_SEED", "")
    if not text:
        return None
    try:
        seed = int(text)
    except ValueError:
        seed = -1
    if not 0 <= seed <= MAX_SEED:
        refuse("PL_GLOBAL_SEED", text, f"the environment variable must be a whole number in "
               f"[0, {MAX_SEED}]; lightning.seed_everything sets it")  # fmt: skip
    return seed


def seed_of(generator: torch.Generator) -> int:
    """What the script gave its ``manual_seed``, for good or until it does so again."""
    return generator.initial_seed() % 2**63


def default_seed(nb_consumer: int) -> int:
    """Where nothing was chosen, and no ranks agree on one.

    The loader of one consumer takes what the script gave ``torch.manual_seed``, as torch's own
    loader follows that. Several consumers can't know each other's, and neither can several ranks
    of one consumer, which scripts often seed by their number.
    """
    _, nb_ranks = known_rank() or (0, 1)
    alone = nb_consumer == nb_ranks == 1
    seed = torch.initial_seed()
    return seed if alone and seed < _CHOSEN_BELOW else _FIXED
