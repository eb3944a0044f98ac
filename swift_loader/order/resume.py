"""How a run that follows the plan goes on from what was saved of it. Pure.

With the same number of consumers, batch size and tail rule, the rest of the sequence is exactly
that of the undisturbed run. With others, what all old consumers together had not got yet is dealt
out again, exactly once, and epochs after that are ordinary ones.

One state stands for all consumers as long as they made equal steps, as in data-parallel training.
Where their numbers of delivered batches differ (consumers that don't wait for each other, or
first-ready delivery), give the list of the states of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from swift_loader.errors import StateError
from swift_loader.order.remix import alike, evened, remix, same_sequence
from swift_loader.order.state import Saved, State, differing, read
from swift_loader.plan import Plan, Span
from swift_loader.plan.partition import complement, joined

__all__ = ["Resume", "as_if", "complete", "resume", "untouched"]

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
    later: Plan | None = None
    """Of the epochs after this one, where that is not the loader's own: a mixture goes on."""
    notes: tuple[str, ...] = ()
    """What is not as it was, for a reader."""


def resume(state: State, plan: Plan, consumer: int) -> Resume:
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
    that ``tail="pad"`` would have repeated count once. Where nothing is left, or the new tail rule
    makes no batch of it, the rest of the epoch is empty.

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
    saved = read(state, "plan")
    one = saved[0] if isinstance(state, Mapping) else None
    if one is not None:
        everyone = [as_if(one, number) for number in range(one.plan.nb_consumer)]
    else:
        everyone = complete(saved)
    begun = min(everyone, key=lambda each: (each.epoch, untouched(each)))
    _check_same_run(begun.plan, plan)
    mixed = plan.mixture is not None
    if not mixed and all(untouched(each) and each.epoch == begun.epoch for each in everyone):
        return Resume(begun.epoch, plan, 0)
    same_deal = _deal(begun.plan) == _deal(plan)
    stands_for_others = one is not None and not (same_deal and one.consumer == consumer)
    if stands_for_others and begun.ahead and begun.plan.nb_consumer > 1:
        raise StateError(
            f"the saved consumer was given batches {list(begun.ahead)} out of order, so its state"
            " can't stand for the other consumers; give the list of the states of all"
        )
    if mixed:
        return _resume_mixture(begun, everyone, plan, consumer)
    if same_deal:
        own = everyone[consumer]
        if own.epoch > begun.epoch:
            return Resume(own.epoch, plan, 0)
        return Resume(own.epoch, own.plan, own.delivered, own.ahead)
    nothing = Resume(begun.epoch, plan, plan.nb_batches(consumer))
    if all(each.epoch > begun.epoch or _ended(each) for each in everyone):
        return nothing
    rest = replace(
        plan, nearby_shuffle=begun.plan.nearby_shuffle, spans=_left_over(begun, everyone)
    )
    return Resume(begun.epoch, rest, 0) if rest.nb_batches(0) else nothing


def _resume_mixture(begun: Saved, everyone: list[Saved], plan: Plan, consumer: int) -> Resume:
    """The same for a mixture, which is one sequence over all epochs."""
    old, epoch = begun.plan, begun.epoch
    assert old.mixture is not None
    assert plan.mixture is not None
    same_deal = _deal(old) == _deal(plan)
    # Where a resume left nothing of the epoch, the plan is that of the next one.
    spans = () if old.mixture.first_epoch > epoch else _left_over(begun, everyone)
    left = [(0, old.nb_samples)] if spans is None else list(spans)
    count = sum(stop - start for start, stop in left)
    even = old.mixture.restarts or evened(plan, count) == count
    one_table = len(plan.mixture.table) == 1  # steps of another size would move the others
    if alike(old.mixture, plan.mixture) and (same_deal or (one_table and even)):
        later = same_sequence(old, plan, epoch)
        own = everyone[consumer] if same_deal else begun
        if same_deal and own.epoch > epoch:
            return Resume(own.epoch, later, 0, later=later)
        if same_deal:
            return Resume(epoch, own.plan, own.delivered, own.ahead, later)
        rest: Plan | None = replace(
            plan,
            nb_samples=old.nb_samples,
            nearby_shuffle=old.nearby_shuffle,
            mixture=old.mixture,
            spans=spans,
        )
        notes: tuple[str, ...] = ()
    else:
        steps = min(_delivered(begun.epoch, each) for each in everyone)
        dealt = complement(old.nb_samples, left)
        remixed = remix(old, plan, epoch, steps, dealt, left)
        rest, later, notes = remixed.rest, remixed.later, remixed.notes
    if rest is None or not left or not rest.nb_batches(0):
        return Resume(epoch, later, later.nb_batches(consumer), later=later, notes=notes)
    return Resume(epoch, rest, 0, later=later, notes=notes)


def _delivered(epoch: int, saved: Saved) -> int:
    return saved.plan.nb_batches(saved.consumer) if saved.epoch > epoch else saved.delivered


def untouched(saved: Saved) -> bool:
    """Nothing of the epoch was delivered to this consumer, in this run or one before."""
    return saved.delivered == 0 and not saved.ahead and saved.plan.spans is None


def _ended(saved: Saved) -> bool:
    return saved.delivered == saved.plan.nb_batches(saved.consumer)


def as_if(saved: Saved, consumer: int) -> Saved:
    """The state of another consumer that made equally many steps, or all that it has."""
    delivered = min(saved.delivered, saved.plan.nb_batches(consumer))
    return replace(saved, consumer=consumer, delivered=delivered)


def _deal(plan: Plan) -> tuple[int, int, str]:
    """What decides who gets what of a given order."""
    return plan.nb_consumer, plan.batch_size, plan.tail


def _check_same_run(old: Plan, new: Plan) -> None:
    if (old.mixture is None) != (new.mixture is None):
        kinds = ("one data set", "a mixture")
        raise StateError(
            f"the state is of {kinds[old.mixture is not None]}, and this is "
            f"{kinds[new.mixture is not None]}; {_AFRESH}"
        )
    names = ["seed", "shuffle"] if new.mixture is not None else ["nb_samples", "seed", "shuffle"]
    if old.shuffle and new.shuffle and (old.nearby_shuffle == 0) != (new.nearby_shuffle == 0):
        names.append("nearby_shuffle")
    differences = differing(old, new, names)
    if differences:
        raise StateError(f"the state is of another run: {differences}; {_AFRESH}")


def complete(states: list[Saved]) -> list[Saved]:
    """The states of all consumers of one run, ordered by consumer; StateError if they are not that.

    All are in the same epoch, or have just ended it.
    """
    nb_consumer = states[0].plan.nb_consumer
    by_consumer = {each.consumer: each for each in states}
    if len(by_consumer) < len(states):
        numbers = sorted(each.consumer for each in states)
        raise StateError(f"the list holds a consumer twice: {numbers}; give each state once")
    begun = min(states, key=lambda each: (each.epoch, untouched(each)))
    for each in states:
        ended = untouched(each) and each.epoch == begun.epoch + 1
        if each.epoch != begun.epoch and not ended:
            raise StateError(
                f"consumer {begun.consumer} is in epoch {begun.epoch}, consumer {each.consumer} in"
                f" epoch {each.epoch}; give states that were saved together"
            )
        skipped = {"spans", "nearby_shuffle"} if ended else set()
        if ended and each.plan.mixture is not None:
            skipped |= {"nb_samples", "mixture"}
        names = [field.name for field in fields(Plan) if field.name not in skipped]
        differences = differing(begun.plan, each.plan, names)
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


def _left_over(begun: Saved, everyone: Iterable[Saved]) -> tuple[Span, ...] | None:
    """The positions of the epoch of `begun` that nobody got; None if that is the whole epoch."""
    plan = begun.plan
    counts = {}
    ahead: list[Span] = []
    for each in everyone:
        if each.epoch > begun.epoch:
            counts[each.consumer] = plan.nb_batches(each.consumer)
        else:
            counts[each.consumer] = each.delivered
            for k in each.ahead:
                ahead += plan.partition.segments(each.consumer, k, k + 1)
    delivered = ahead + plan.partition.dealt([counts[c] for c in range(plan.nb_consumer)])
    spans = joined(
        [
            span
            for start, stop in complement(len(plan.stream), delivered)
            for span in plan.stream.positions(start, stop)
        ]
    )
    return None if spans == ((0, plan.nb_samples),) else spans
