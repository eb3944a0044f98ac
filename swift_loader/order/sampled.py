"""The order of a sampler of the user's, which the training process iterates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from swift_loader.order.drawn import Replay
from swift_loader.order.keys import decode_keys
from swift_loader.order.order import Order
from swift_loader.order.part import UNKNOWN, EpochPart, Number, Taken
from swift_loader.order.sampling import Sampling
from swift_loader.order.state import Saved, State, own
from swift_loader.plan import Plan

__all__ = ["SampledOrder"]

_PLAN = 0


@dataclass(frozen=True)
class SampledOrder(Order):
    """The order of a `torch.utils.data.Sampler`, a batch sampler, or any iterable of the kind.

    It is iterated here, in the training process, as far ahead as batches are prefetched. Of the
    next epoch nothing is drawn before the loop begins it: the sampler may depend on what the loop
    does in between. `seeds` is a plan for seeds alone.
    """

    sampling: Sampling
    seeds: Plan
    consumer: int
    rest: EpochPart | None = None
    replay: Replay | None = None  # of that part

    @property
    def one_stands_for_all(self) -> bool:
        return False

    @property
    def known_ahead(self) -> bool:
        return False

    @property
    def draws(self) -> bool:
        return True

    def plans(self) -> dict[int, Plan]:
        return {_PLAN: self.seeds}

    def part(self, epoch: int) -> EpochPart:
        if self.rest is not None and self.rest.epoch == epoch:
            return self.rest
        return EpochPart(_PLAN, epoch, UNKNOWN, expected=self._expected())

    def begin(self, epoch: int) -> Taken:
        taken = Taken(self.part(epoch))
        self.sampling.begin(taken, self.replay if taken.part is self.rest else None)
        return taken

    def batches(self, part: EpochPart) -> Iterator[tuple[Number, bytes]]:
        for k, details in self.sampling.draw(part, self.replay if part is self.rest else None):
            number = Number(part.plan_id, part.epoch, k)
            if number in part:
                yield number, details

    def samples(self, number: Number, details: bytes) -> list[Any]:
        return list(decode_keys(details)[0])

    def checksum(self, number: Number) -> int | None:
        return self.sampling.checksum(number.k)

    def capture(self, taken: Taken) -> dict[str, Any]:
        part, ahead = taken.part, tuple(sorted(taken.beyond))
        replay = self.replay if part is self.rest else None
        more = {"sampler": self.sampling.capture(taken, replay)}
        saved = Saved("sampler", self.seeds, part.epoch, self.consumer, taken.first, ahead, more)
        return saved.written()

    def resumed(self, state: State) -> tuple[Order, int]:
        saved = own(state, self.seeds, self.consumer, "sampler", ("sampler",))
        replay = self.sampling.read(saved.more["sampler"])
        rest = EpochPart(
            _PLAN, saved.epoch, UNKNOWN, saved.delivered, frozenset(saved.ahead), self._expected()
        )
        return replace(self, rest=rest, replay=replay), rest.epoch

    def _expected(self) -> int | None:
        try:
            return len(self.sampling)
        except TypeError:
            return None
