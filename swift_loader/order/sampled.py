"""The order of a sampler of the user's, which the training process iterates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from swift_loader.order.order import Order
from swift_loader.order.part import UNKNOWN, EpochPart, Number, Taken
from swift_loader.order.state import Saved, State, own
from swift_loader.plan import Plan

__all__ = ["SampledOrder", "batches_of"]

_PLAN = 0


@dataclass(frozen=True)
class SampledOrder:
    """The order of a `torch.utils.data.Sampler`, a batch sampler, or any iterable of the kind.

    It is iterated here, in the training process, as far ahead as batches are prefetched. Of the
    next epoch nothing is drawn before the loop begins it: the sampler may depend on what the loop
    does in between. `begin(epoch)` gives an epoch's batches; `seeds` is a plan for seeds alone.
    """

    begin: Callable[[int], Iterable[Sequence[int]]]
    nb_batches: int | None
    seeds: Plan
    consumer: int
    rest: EpochPart | None = None

    @property
    def known_ahead(self) -> bool:
        return False

    @property
    def nb_shards(self) -> int:
        return 0

    def plans(self) -> dict[int, Plan]:
        return {_PLAN: self.seeds}

    def part(self, epoch: int) -> EpochPart:
        if self.rest is not None and self.rest.epoch == epoch:
            return self.rest
        return EpochPart(_PLAN, epoch, UNKNOWN if self.nb_batches is None else self.nb_batches)

    def batches(self, part: EpochPart) -> Iterator[tuple[Number, bytes]]:
        for k, batch in enumerate(islice(self.begin(part.epoch), part.count)):
            number = Number(part.plan_id, part.epoch, k)
            if number in part:
                yield number, np.asarray(batch, "<i8").tobytes()

    def samples(self, number: Number, details: bytes) -> list[Any]:
        return list(np.frombuffer(details, "<i8").tolist())

    def capture(self, taken: Taken) -> dict[str, Any]:
        part, ahead = taken.part, tuple(sorted(taken.beyond))
        saved = Saved("sampler", self.seeds, part.epoch, self.consumer, taken.first, ahead)
        return saved.written()

    def resumed(self, state: State) -> tuple[Order, int]:
        saved = own(state, self.seeds, self.consumer, "sampler", ())
        rest = replace(self.part(saved.epoch), first=saved.delivered, done=frozenset(saved.ahead))
        return replace(self, rest=rest), rest.epoch


def batches_of(
    sampler: Iterable[int] | None,
    batch_sampler: Iterable[Sequence[int]] | None,
    batch_size: int,
    drop_last: bool,
) -> tuple[Callable[[int], Iterable[Sequence[int]]], int | None]:
    """How an epoch of the user's sampler begins, and how many batches it has (None: it can't tell).

    ``set_epoch`` is called where the sampler has it, or the one inside a batch sampler.
    """
    source: Any = batch_sampler if batch_sampler is not None else sampler
    inner: Any = getattr(source, "sampler", None)
    epoch_setters = [one.set_epoch for one in (source, inner) if hasattr(one, "set_epoch")]

    def batches(epoch: int) -> Iterator[Sequence[int]]:
        for set_epoch in epoch_setters:
            set_epoch(epoch)
        if batch_sampler is not None:
            yield from batch_sampler
            return
        indices = iter(source)
        while batch := list(islice(indices, batch_size)):
            if len(batch) == batch_size or not drop_last:
                yield batch

    try:
        length = len(source)
    except (TypeError, NotImplementedError):
        return batches, None
    if batch_sampler is not None:
        return batches, length
    return batches, length // batch_size if drop_last else -(-length // batch_size)
