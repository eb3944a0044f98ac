"""What a run saves of the plan, and how it goes on from that.

A state is a small JSON-able dict. It counts the batches of one consumer that were *delivered*;
what was made ahead of the training loop does not matter.

>>> state = capture(plan, epoch=3, consumer=0, delivered=17)
>>> resume(state, plan, consumer=0)
Resume(epoch=3, plan=..., first_batch=17, ahead=())

With the same number of consumers, batch size and tail rule, the rest of the sequence is exactly
that of the undisturbed run. With others, what all old consumers together had not got yet is dealt
out again, exactly once, and epochs after that are ordinary ones.

One state stands for all consumers as long as they made equal steps, as in data-parallel training.
Where their numbers of delivered batches differ (consumers that don't wait for each other, or
first-ready delivery), give the list of the states of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..errors import StateError
from .partition import Span, complement, joined
from .plan import JSON, Plan

__all__ = ["Resume", "capture", "resume", "saved_seed"]

_VERSION = 1
_GENUINE = "give what state_dict() returned"
_AFRESH = "build the loader as it was, or start afresh without the state"


@dataclass(frozen=True)
class Resume:
    """Where a consumer goes on."""

    epoch: int
    plan: Plan
    """The plan of this epoch only; later ones follow the loader's own."""
    first_batch: int
    """Number of the first batch that is still to be delivered."""
    ahead: tuple[int, ...] = ()
    """Later batches that were delivered already, out of order, ascending; to be left out."""


def capture(
    plan: Plan, epoch: int, consumer: int, delivered: int, ahead: Iterable[int] = ()
) -> dict[str, JSON]:
    """The state of one consumer after it was given the batches ``[0, delivered)`` of `epoch`.

    `ahead` names the batches beyond those that were delivered too, out of order. At the very end
    of an epoch, the state is that of the beginning of the next.
    """
    return _Saved.of(plan, epoch, consumer, delivered, tuple(sorted(ahead))).plain()


def resume(
    state: Mapping[str, Any] | Sequence[Mapping[str, Any]], plan: Plan, consumer: int
) -> Resume:
    """Where `consumer` of the new set-up `plan` (a whole epoch: no spans) goes on.

    Parameters
    ----------
    state:
        One state, of this consumer or of any other when all made equal steps; or a list with the
        states of all old consumers, in any order.
    plan:
        Number of consumers, batch size and tail rule may differ from the state's. So may the window
        of a nearby shuffle (its default follows the batch size): the interrupted epoch is finished
        in the order that it began with, the new window counts from the next epoch.
    consumer:
        In ``[0, plan.nb_consumer)``.

    What is dealt out again includes the samples that ``tail="drop"`` would have left out; samples
    that ``tail="pad"`` would have repeated count once. If the new tail rule makes no batch of what
    is left, the next epoch is given.

    Raises
    ------
    StateError
        The state is malformed or newer; the number of samples, the seed, shuffling or its kind
        (full or nearby) differ; a list is incomplete, or its states contradict each other.
    """
    if plan.spans is not None:
        raise ValueError("resume() needs the plan of a whole epoch")
    if not 0 <= consumer < plan.nb_consumer:
        raise IndexError(f"consumer {consumer} is not in [0, {plan.nb_consumer})")
    if isinstance(state, Mapping):
        one = _Saved.parse(state)
        everyone = [replace(one, consumer=number) for number in range(one.plan.nb_consumer)]
    elif isinstance(state, Sequence):
        one = None
        everyone = _complete([_Saved.parse(each) for each in state])
    else:
        raise StateError(f"a {type(state).__name__} is not a state; {_GENUINE}")
    begun = min(everyone, key=lambda each: (each.epoch, each.untouched))
    _check_same_run(begun.plan, plan)
    if all(each.untouched and each.epoch == begun.epoch for each in everyone):
        return Resume(begun.epoch, plan, 0)
    same_deal = _deal(begun.plan) == _deal(plan)
    stands_for_others = one is not None and not (same_deal and one.consumer == consumer)
    if stands_for_others and begun.ahead and begun.plan.nb_consumer > 1:
        raise StateError(
            f"the saved consumer was given batches {list(begun.ahead)} out of order, so its state"
            " can't stand for the other consumers; give the list of the states of all"
        )
    if same_deal:
        own = everyone[consumer]
        if own.epoch > begun.epoch:
            return Resume(own.epoch, plan, 0)
        return Resume(own.epoch, own.plan, own.delivered, own.ahead)
    rest = replace(
        plan, nearby_shuffle=begun.plan.nearby_shuffle, spans=_left_over(begun, everyone)
    )
    if rest.nb_batches(consumer) == 0:
        return Resume(begun.epoch + 1, plan, 0)
    return Resume(begun.epoch, rest, 0)


def saved_seed(state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> int:
    """The seed of the run that `state` (or a list of states) is of. Raises `StateError`."""
    one = state[0] if isinstance(state, Sequence) and state else state
    return _Saved.parse(one).plan.seed


@dataclass(frozen=True)
class _Saved:
    """A valid state. One that ends an epoch is that of the beginning of the next."""

    plan: Plan
    epoch: int
    consumer: int
    delivered: int
    ahead: tuple[int, ...]

    @classmethod
    def of(
        cls, plan: Plan, epoch: int, consumer: int, delivered: int, ahead: Sequence[int]
    ) -> _Saved:
        """Raises ValueError when there can be no such state."""
        if epoch < 0:
            raise ValueError(f"epoch {epoch} is negative")
        if not 0 <= consumer < plan.nb_consumer:
            raise ValueError(f"consumer {consumer} is not in [0, {plan.nb_consumer})")
        nb_batches = plan.nb_batches(consumer)
        if not 0 <= delivered <= nb_batches:
            raise ValueError(f"delivered={delivered} is not in [0, {nb_batches}]")
        later = sorted(ahead)
        if len(set(later)) < len(later) or not all(delivered <= k < nb_batches for k in later):
            raise ValueError(
                f"ahead={later} are not distinct batches in [{delivered}, {nb_batches})"
            )
        while later and later[0] == delivered:
            del later[0]
            delivered += 1
        if delivered == nb_batches > 0:
            return cls(replace(plan, spans=None), epoch + 1, consumer, 0, ())
        return cls(plan, epoch, consumer, delivered, tuple(later))

    @classmethod
    def parse(cls, state: object) -> _Saved:
        if not isinstance(state, Mapping):
            raise StateError(f"a {type(state).__name__} is not a state; {_GENUINE}")
        version = state.get("version")
        if type(version) is not int or version < 1:
            raise StateError(f"the state has no valid version ({version!r}); {_GENUINE}")
        if version > _VERSION:
            raise StateError(
                f"the state has version {version}, this swift_loader reads version {_VERSION};"
                " it was saved by a newer one: upgrade"
            )
        try:
            values = [state[name] for name in ("epoch", "consumer", "delivered")]
            epoch, consumer, delivered, *ahead = values + list(state["ahead"])
            for number in (epoch, consumer, delivered, *ahead):
                if type(number) is not int:
                    raise TypeError(f"{number!r} is not an integer")
            names = {field.name for field in fields(Plan)}
            if set(state["plan"]) != names:
                odd = sorted(map(str, names ^ set(state["plan"])))
                raise ValueError(f"fields of the plan are missing or unknown: {odd}")
            return cls.of(Plan(**state["plan"]), epoch, consumer, delivered, ahead)
        except (KeyError, TypeError, ValueError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise StateError(f"the state is malformed: {what}; {_GENUINE}") from error

    def plain(self) -> dict[str, JSON]:
        return {
            "version": _VERSION,
            "plan": self.plan.fingerprint(),
            "epoch": self.epoch,
            "consumer": self.consumer,
            "delivered": self.delivered,
            "ahead": list(self.ahead),
        }

    @property
    def untouched(self) -> bool:
        """Nothing of the epoch was delivered to this consumer, in this run or one before."""
        return self.delivered == 0 and not self.ahead and self.plan.spans is None


def _deal(plan: Plan) -> tuple[int, int, str]:
    """What decides who gets what of a given order."""
    return plan.nb_consumer, plan.batch_size, plan.tail


def _check_same_run(old: Plan, new: Plan) -> None:
    names = ["nb_samples", "seed", "shuffle"]
    if old.shuffle and new.shuffle and (old.nearby_shuffle == 0) != (new.nearby_shuffle == 0):
        names.append("nearby_shuffle")
    differences = _differences(old, new, names)
    if differences:
        raise StateError(f"the state is of another run: {differences}; {_AFRESH}")


def _differences(old: Plan, new: Plan, names: Iterable[str]) -> str:
    return ", ".join(
        f"{name} was {getattr(old, name)!r}, is now {getattr(new, name)!r}"
        for name in names
        if getattr(old, name) != getattr(new, name)
    )


def _complete(states: list[_Saved]) -> list[_Saved]:
    """The states of all consumers of one run, ordered by consumer; StateError if they are not that.

    All are in the same epoch, or have just ended it.
    """
    if not states:
        raise StateError("the list of states is empty; give the state of every consumer")
    nb_consumer = states[0].plan.nb_consumer
    by_consumer = {each.consumer: each for each in states}
    if len(by_consumer) < len(states):
        numbers = sorted(each.consumer for each in states)
        raise StateError(f"the list holds a consumer twice: {numbers}; give each state once")
    begun = min(states, key=lambda each: (each.epoch, each.untouched))
    for each in states:
        ended = each.untouched and each.epoch == begun.epoch + 1
        if each.epoch != begun.epoch and not ended:
            raise StateError(
                f"consumer {begun.consumer} is in epoch {begun.epoch}, consumer {each.consumer} in"
                f" epoch {each.epoch}; give states that were saved together"
            )
        skipped = {"spans", "nearby_shuffle"} if ended else set()
        names = [field.name for field in fields(Plan) if field.name not in skipped]
        differences = _differences(begun.plan, each.plan, names)
        if differences:
            raise StateError(
                f"the states of consumers {begun.consumer} and {each.consumer} are of different"
                f" runs ({differences}); give states that were saved together"
            )
    missing = sorted(set(range(nb_consumer)) - set(by_consumer))
    if missing:
        raise StateError(
            f"the list lacks the states of consumers {missing} of {nb_consumer}; give all, or one"
            " state alone (not in a list) if all consumers made equal steps"
        )
    return [by_consumer[number] for number in range(nb_consumer)]


def _left_over(begun: _Saved, everyone: Iterable[_Saved]) -> tuple[Span, ...] | None:
    """The positions of the epoch of `begun` that nobody got; None if that is the whole epoch."""
    plan = begun.plan
    delivered: list[Span] = []
    for each in everyone:
        if each.epoch > begun.epoch:
            batches = [(0, plan.nb_batches(each.consumer))]
        else:
            batches = [(0, each.delivered), *((k, k + 1) for k in each.ahead)]
        for first, last in batches:
            delivered += plan.partition.segments(each.consumer, first, last)
    spans = joined(
        [
            span
            for start, stop in complement(len(plan.stream), delivered)
            for span in plan.stream.positions(start, stop)
        ]
    )
    return None if spans == ((0, plan.nb_samples),) else spans
