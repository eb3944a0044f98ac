"""Whether a run can have written the plan of a mixture that stands in a state. Pure.

`read_mixture` has checked the types, and `MixturePlan` what it can work with at all. Here is how
the fields belong together: with one another, and with the epoch and the spans of the state. It
follows from how `plan_of_mixture` and `order.remix` make them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise

from swift_loader.order.part import MAX_EPOCH
from swift_loader.plan import Plan
from swift_loader.plan.interleave import ONE
from swift_loader.plan.mixture import Hole, MixturePlan
from swift_loader.plan.mixture_fields import MOST_OF_BATCH, MOST_SAMPLES
from swift_loader.plan.rounds import Round

__all__ = ["unwritten"]

_MOST_OWED = 64
"""Positions. Sources are within three of their share; a change of the mixture may add to that."""


def unwritten(states: Iterable[tuple[Plan, int, bool]]) -> Iterator[tuple[str, object]]:
    """Fields that no run writes, as ``"mixture.counts"``, and what they are; first things first.

    `states`: each state's plan, its epoch, and whether its consumer has had all of that. Time:
    about that of making the mixture once, however many states have it.
    """
    checked: set[MixturePlan] = set()
    for plan, epoch, is_over in states:
        mixture = plan.mixture
        if mixture is None:
            continue
        if mixture not in checked:
            checked.add(mixture)
            for name in _wrong_fields(mixture):
                yield f"mixture.{name}", getattr(mixture, name)
        for name in _wrong_in_its_place(plan, mixture, epoch, is_over):
            values = {"epoch": epoch, "spans": plan.spans}
            yield name, values.get(name, getattr(mixture, name.removeprefix("mixture."), None))


def _wrong_fields(mixture: MixturePlan) -> Iterator[str]:
    """In an order in which each check may rely on those before."""
    begin, lengths, sizes = mixture.first_position, mixture.lengths, mixture.batch_sizes
    table, counts = mixture.table, mixture.counts
    is_first = mixture.first_epoch == 0  # so nothing has come but what lies before `begin`
    if (
        table[0][0] != 0
        or table[-1][0] > MAX_EPOCH
        or any(a[1] == b[1] for a, b in pairwise(table))
    ):
        yield "table"
    if mixture.restarts and len(table) > 1:
        yield "table"
    most = [length // size for length, size in zip(lengths, sizes, strict=True)]
    if len(mixture.limits) != (len(lengths) if mixture.restarts else 0):
        yield "limits"
    if any(limit > whole for limit, whole in zip(mixture.limits, most, strict=False)):
        yield "limits"
    if mixture.restarts and not begin and (
        list(mixture.limits) != most
        or any(w and not whole for w, whole in zip(table[0][1], most, strict=True))
    ):  # fmt: skip
        yield "limits"
    if min(counts) < 0 or max(counts) >= MOST_SAMPLES:
        yield "counts"
    if is_first and sum(counts) > begin * MOST_OF_BATCH:
        yield "counts"
    if any(mixture.debts) and not begin and (is_first or mixture.restarts):
        yield "debts"
    if max(map(abs, mixture.debts)) > _MOST_OWED * (ONE + sum(counts)):  # shares are rounded
        yield "debts"
    if not mixture.nb_positions or (
        mixture.restarts and mixture.nb_positions != begin + mixture.nb_until_exhausted
    ):
        yield "nb_positions"
    left = len(mixture.holes) + mixture.nb_positions - begin
    if mixture.nb_steps not in {max(1, (left + extra) // mixture.step_positions)
                                for extra in (0, mixture.step_positions - 1)}:  # fmt: skip
        yield "nb_steps"
    if not 0 <= mixture.first_step <= (begin if is_first else MAX_EPOCH):
        yield "first_step"
    holes: list[list[Hole]] = [[] for _ in lengths]
    for hole in mixture.holes:
        holes[hole[1]].append(hole)
    places = [hole[0] for hole in mixture.holes]
    # The last position before `begin` was had: where else would `begin` come from?
    if any(a >= b for a, b in pairwise(places)) or (places and places[-1] >= begin - 1):
        yield "holes"
    for own, rounds, count, length in zip(holes, mixture.rounds, counts, lengths, strict=True):
        if not _are_holes(own, count):
            yield "holes"
        if not _are_rounds(rounds, own[0][2] if own else count, count, length):
            yield "rounds"


def _are_holes(holes: list[Hole], count: int) -> bool:
    """Of one source, of which `count` samples have come, or stand in holes."""
    end = 0
    for _, _, number, size in holes:
        if number < end or size > MOST_OF_BATCH:
            return False
        end = number + size
    return end <= count


def _are_rounds(rounds: tuple[Round, ...], low: int, count: int, length: int) -> bool:
    """Of a source that has `length` samples now, and whose numbers from `low` on may be asked for.

    What is told from `count` on is one change at most, at the end of the round that is begun.
    """
    first, number, _ = rounds[0]
    if not 0 <= number <= first <= low or (number > 0) != (first > 0) or rounds[-1][2] != length:
        return False
    for (first, number, size), (following, its_number, its_size) in pairwise(rounds):
        begun = -((first - following) // size)  # the last one of them may have been cut short
        if its_number != number + begun or its_size == size:
            return False
    firsts = [one[0] for one in rounds]
    if any(size > length for _, _, size in rounds[bisect_right(firsts, low) - 1 :]):
        return False
    now = bisect_right(firsts, count) - 1
    first, _, size = rounds[now]
    return now == len(rounds) - 1 or (
        now == len(rounds) - 2 and firsts[-1] == first + ((count - first) // size + 1) * size
    )


def _wrong_in_its_place(
    plan: Plan, mixture: MixturePlan, epoch: int, is_over: bool
) -> Iterator[str]:
    begin, spans, first_epoch = mixture.first_position, plan.spans, mixture.first_epoch
    if max(mixture.batch_sizes) > 1 and plan.batch_size > 1:  # a position is a batch
        yield "mixture.batch_sizes"
    if len(mixture.table) > 1 and mixture.step_positions != plan.batch_size * plan.nb_consumer:
        yield "mixture.step_positions"
    # An epoch of which a resume left nothing is over before the plan of the next one.
    is_next = first_epoch == epoch + 1 and is_over and spans is None
    if not (0 <= first_epoch <= epoch or is_next):
        yield "mixture.first_epoch"
    epochs = max(0, epoch - first_epoch)
    per_epoch = (mixture.nb_positions - begin) * max(mixture.batch_sizes)
    if max(mixture.counts) + epochs * per_epoch >= MOST_SAMPLES:
        yield "epoch"
    if mixture.first_step + epochs * mixture.nb_steps >= MAX_EPOCH:
        yield "epoch"
    if not begin:
        return
    if first_epoch != epoch:
        yield "mixture.first_epoch"
    if spans is None:
        yield "mixture.first_position"
    places = [hole[0] for hole in mixture.holes]
    for start, stop in spans or ():
        before = min(stop, begin)
        if start < before != start + bisect_left(places, before) - bisect_left(places, start):
            yield "spans"
