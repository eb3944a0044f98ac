"""Which batches a consumer gets, and what of it is saved: by the loader's own plan, or by a sampler
that the user brings.

An order holds nothing of the loader: the pipeline asks it for the epochs to come, and must not keep
a loader alive that nobody else holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np

from swift_loader.errors import StateError
from swift_loader.pipeline.delivery import Taken
from swift_loader.pipeline.schedule import UNKNOWN, EpochPart
from swift_loader.plan import Plan, Resume, capture, resume
from swift_loader.plan import saved_seed as seed_of_plan
from swift_loader.transport.messages import Number

__all__ = ["Order", "PlannedOrder", "SampledOrder", "State", "batches_of", "saved_seed"]

State = Mapping[str, Any] | Sequence[Mapping[str, Any]]

_PLAN, _RESUMED_PLAN = 0, 1  # plan ids: the loader's own, and that of a resumed epoch


class Order(Protocol):
    """What a loader and its pipeline ask of an order."""

    @property
    def worker_of(self) -> Callable[[Number], int] | None:
        """Which worker must make a number; None: any can."""

    def plans(self) -> dict[int, Plan]:
        """What the plan ids of its parts mean to workers."""

    def part(self, epoch: int) -> EpochPart:
        """What the consumer takes of an epoch."""

    def following(self, epoch: int) -> EpochPart:
        """The part to be prefetched when all before it is given out; empty: not yet."""

    def numbers(self, part: EpochPart) -> Iterator[Number]:
        """The numbers of a part, in order."""

    def indices(self, number: Number) -> bytes:
        """Sample indices of an outstanding number, int64; empty where the plan tells."""

    def delivered(self, number: Number) -> None:
        """The training loop has it: its indices will not be asked for again."""

    def exhausted(self, number: Number) -> None:
        """There is no such batch: a stream's shard has ended before it."""

    def capture(
        self, part: EpochPart, taken: Taken, streams: Mapping[int, bytes]
    ) -> dict[str, Any]:
        """The state of a consumer that has `taken` so much of `part`."""

    def resumed(self, state: State) -> tuple[Order, int]:
        """The order that goes on where `state` stands, and its epoch. Raises `StateError`."""


@dataclass(frozen=True)
class PlannedOrder:
    """The loader's own order, which workers know from the plan."""

    plan: Plan
    consumer: int
    rest: Resume | None = None  # what a loaded state left of its epoch

    @property
    def worker_of(self) -> None:
        return None

    def plans(self) -> dict[int, Plan]:
        plans = {_PLAN: self.plan}
        if self.rest is not None:
            plans[_RESUMED_PLAN] = self.rest.plan
        return plans

    def part(self, epoch: int) -> EpochPart:
        rest = self.rest
        if rest is not None and rest.epoch == epoch:
            count = rest.plan.nb_batches(self.consumer)
            return EpochPart(_RESUMED_PLAN, epoch, count, rest.first_batch, frozenset(rest.ahead))
        return EpochPart(_PLAN, epoch, self.plan.nb_batches(self.consumer))

    def following(self, epoch: int) -> EpochPart:
        return self.part(epoch)

    def numbers(self, part: EpochPart) -> Iterator[Number]:
        return part.numbers()

    def indices(self, number: Number) -> bytes:
        return b""

    def delivered(self, number: Number) -> None:
        pass

    def exhausted(self, number: Number) -> None:
        raise AssertionError(f"{number} is of no stream")

    def capture(
        self, part: EpochPart, taken: Taken, streams: Mapping[int, bytes]
    ) -> dict[str, Any]:
        plan = self.plan_of(part)
        return capture(plan, part.epoch, self.consumer, taken.first, taken.beyond)

    def resumed(self, state: State) -> tuple[Order, int]:
        rest = resume(state, self.plan, self.consumer)
        return replace(self, rest=rest), rest.epoch

    def plan_of(self, part: EpochPart) -> Plan:
        """The plan that the numbers of `part` are of."""
        return self.plans()[part.plan_id]

    def state_at(self, epoch: int, first_batch: int) -> dict[str, Any]:
        """The state after all batches before `first_batch` of `epoch`."""
        part = self.part(epoch)
        ahead = [k for k in part.done if k >= first_batch]
        return capture(self.plan_of(part), epoch, self.consumer, first_batch, ahead)

    def size_of(self, epoch: int, first_batch: int) -> tuple[int, int]:
        """``(batches, samples)`` of an epoch from batch `first_batch` on."""
        part = self.part(epoch)
        left = range(max(first_batch, part.first), part.count)
        nb_batches = len(left) - sum(1 for k in part.done if k in left)
        if not nb_batches:
            return 0, 0
        plan = self.plan_of(part)
        last = plan.batch(epoch, self.consumer, part.count - 1)
        return nb_batches, (nb_batches - 1) * plan.batch_size + len(last)


@dataclass(frozen=True)
class SampledOrder:
    """The order of a `torch.utils.data.Sampler`, a batch sampler, or any iterable of the kind.

    It is iterated here, in the training process, as far ahead as batches are prefetched. Of the
    next epoch nothing is drawn before the loop begins it: the sampler may depend on what the loop
    does in between. `batches(epoch)` begins an epoch; `seeds` is a plan for seeds alone.
    """

    batches: Callable[[int], Iterable[Sequence[int]]]
    nb_batches: int | None
    seeds: Plan
    consumer: int
    rest: EpochPart | None = None
    _drawn: dict[Number, bytes] = field(default_factory=dict)

    @property
    def worker_of(self) -> None:
        return None

    def plans(self) -> dict[int, Plan]:
        return {_PLAN: self.seeds}

    def part(self, epoch: int) -> EpochPart:
        if self.rest is not None and self.rest.epoch == epoch:
            return self.rest
        return EpochPart(_PLAN, epoch, UNKNOWN if self.nb_batches is None else self.nb_batches)

    def following(self, epoch: int) -> EpochPart:
        return EpochPart(_PLAN, epoch, 0)

    def numbers(self, part: EpochPart) -> Iterator[Number]:
        self._drawn.clear()
        for k, batch in enumerate(islice(self.batches(part.epoch), part.count)):
            number = Number(part.plan_id, part.epoch, k)
            if number in part:
                self._drawn[number] = np.asarray(batch, "<i8").tobytes()
                yield number

    def indices(self, number: Number) -> bytes:
        return self._drawn[number]

    def delivered(self, number: Number) -> None:
        self._drawn.pop(number, None)

    def exhausted(self, number: Number) -> None:
        raise AssertionError(f"{number} is of no stream")

    def capture(
        self, part: EpochPart, taken: Taken, streams: Mapping[int, bytes]
    ) -> dict[str, Any]:
        ended = not taken.left
        return {
            "version": 1,
            "sampler": True,
            "seed": self.seeds.seed,
            "consumer": self.consumer,
            "epoch": part.epoch + ended,
            "delivered": 0 if ended else taken.first,
            "ahead": [] if ended else sorted(taken.beyond),
        }

    def resumed(self, state: State) -> tuple[Order, int]:
        own: Any = state
        if isinstance(state, Sequence):
            own = next((one for one in state if one.get("consumer") == self.consumer), None)
        if not isinstance(own, Mapping) or own.get("sampler") is not True:
            raise StateError(
                "the state is not of a loader with a sampler; give what state_dict() of this "
                "consumer returned, and build the loader with the same sampler"
            )
        if own["version"] != 1 or own["seed"] != self.seeds.seed:
            raise StateError(
                f"the state is of another run: version {own['version']}, seed {own['seed']}; this "
                f"loader has version 1, seed {self.seeds.seed}"
            )
        whole = self.part(-1)
        rest = EpochPart(
            _PLAN, own["epoch"], whole.count, own["delivered"], frozenset(own["ahead"])
        )
        return replace(self, rest=rest, _drawn={}), rest.epoch


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


def saved_seed(state: State) -> int:
    """The seed of the run that `state` is of. Raises `StateError`."""
    one = state[0] if isinstance(state, Sequence) and state else state
    if isinstance(one, Mapping) and (one.get("sampler") is True or one.get("stream") is True):
        return int(one["seed"])
    return seed_of_plan(state)
