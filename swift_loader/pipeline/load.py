"""How much a worker holds, and how much it may hold: the rules of pacing. Pure.

A worker is not loaded to the brim: what lies in its inbox behind a slow sample can't be made by
anybody else. It gets as many batches as cover about `_AHEAD_S` of its own pace, at least two (one
to make, one to go on with) and at most `most`. What can be made while an order and its batch are on
their way is covered besides. Where several workers stand behind one link (an endpoint), that many
times as much. Whoever has least, for the workers behind it, gets the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

__all__ = ["Load", "least_loaded"]

T = TypeVar("T")
L = TypeVar("L", bound="Load[Any]")
_AHEAD_S = 0.004
_PACE_WEIGHT = 0.2
_MOST_ON_THE_WAY = 128  # a worker: small batches over a long line


@dataclass(slots=True, eq=False)
class Load(Generic[T]):
    """What `worker` holds.

    `most`: batches at once, for each of the `capacity` workers behind it; with capacity 0 it gets
    no more. `held`: by ticket. `depth`: how many it may hold now.
    """

    worker: int
    most: int
    capacity: int = 1
    round_trip_s: float = 0.0
    held: dict[int, T] = field(default_factory=dict)
    pace_s: float | None = None  # seconds a batch, smoothed
    depth: int = 0

    def __post_init__(self) -> None:
        self.settle()

    @property
    def has_room(self) -> bool:
        return len(self.held) < self.depth

    @property
    def on_the_way(self) -> int:
        """Batches that a worker makes while an order goes to it, and its batch comes back."""
        if self.pace_s is None:
            return 0
        return min(_MOST_ON_THE_WAY, int(self.round_trip_s / (self.pace_s + 1e-6)))

    def made(self, busy_s: float) -> None:
        """A batch took so long."""
        old = self.pace_s
        self.pace_s = busy_s if old is None else old + _PACE_WEIGHT * (busy_s - old)
        self.settle()

    def settle(self) -> None:
        """Find `depth` anew."""
        in_hand = 2
        if self.pace_s is not None:
            in_hand = max(2, 1 + int(_AHEAD_S / (self.pace_s + 1e-6)))
        in_hand = min(self.most, in_hand)
        self.depth = (in_hand + (self.on_the_way if self.round_trip_s else 0)) * self.capacity

    def alone(self) -> None:
        """It gets nothing beside what it holds, until `settle`."""
        self.depth = 1

    def close(self) -> None:
        """It gets no more."""
        self.capacity = self.depth = 0


def least_loaded(loads: Iterable[L]) -> L | None:
    """The one of those with room that holds least for its capacity; the first of several."""
    best, least = None, 0.0
    for load in loads:
        held = len(load.held)
        if held < load.depth and (best is None or held / load.capacity < least):
            best, least = load, held / load.capacity
    return best
