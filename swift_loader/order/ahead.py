"""The rest of an epoch, of a sampler that draws its keys from a global generator as it goes.

After a resume, that generator stands where the sampler left it only as long as nobody else is let
draw from it. So all that is left of the epoch is drawn at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from swift_loader.errors import StateError
from swift_loader.order.generators import GlobalGenerators

__all__ = ["STATELESS", "undisturbed"]

STATELESS = (
    "give the sampler a generator or a seed of its own, or state_dict() and load_state_dict(); or "
    "start the epoch afresh without the state"
)
_END: Any = object()
_LOOKED_AT, _LONGEST = 1000, 100_000  # batches


def undisturbed(
    rest: Iterator[Any],
    used: GlobalGenerators,
    stood: Mapping[str, Any] | None,
    k: int,
    length: int,
) -> Iterator[Any]:
    """`rest`, which other draws from the global generators can't change.

    `stood`: how these stood after the first batch; None where one is yet to be drawn from. `k`:
    batches that were passed over. `length`: of the epoch, as the sampler says. Most samplers draw
    all their keys before the first: nothing is drawn in as many batches as were passed over, and
    their rest is asked for as it is wanted.

    Raises `StateError` where there is no end.
    """
    ahead = deque(islice(rest, max(k, _LOOKED_AT)))
    if used.now() == stood:
        return chain(_emptied(ahead), rest)
    ahead.extend(islice(rest, max(2 * length, _LONGEST)))
    if next(rest, _END) is not _END:
        raise StateError(
            "the sampler draws its keys from a global generator (of torch, numpy or `random`) as "
            f"it goes, and has no end, so the rest of the epoch can't be told: {STATELESS}"
        )
    return _emptied(ahead)


def _emptied(batches: deque[Any]) -> Iterator[Any]:
    while batches:
        yield batches.popleft()
