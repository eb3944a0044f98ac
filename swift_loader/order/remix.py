"""A run of a mixture goes on: with what is left, or as another mixture from there on. Pure.

Where sources, weights by step and lengths are as they were, the sequence is the same, whoever gets
it. Where something differs, another `MixturePlan` takes over at the first position that nobody has
had, with the counts of every source; positions before it that somebody still has to get (consumers
that did not make equal steps) are listed in it one by one. The epoch at hand keeps its length, but
for less than a step (`evened`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swift_loader.errors import StateError
from swift_loader.plan import Plan, Span
from swift_loader.plan.mixture import Hole, MixturePlan
from swift_loader.plan.partition import joined
from swift_loader.plan.rounds import Round

__all__ = ["Remixed", "alike", "evened", "remix", "same_sequence"]

_MOST_HOLES = 100_000


@dataclass(frozen=True)
class Remixed:
    """`rest`: the plan of the epoch at hand, None where nothing of it is left; `later`: of those
    after it. `notes`: what differs, for a reader.
    """

    rest: Plan | None
    later: Plan
    notes: tuple[str, ...] = ()


def alike(old: MixturePlan, new: MixturePlan) -> bool:
    """Whether the same is mixed in the same way."""
    names = ["names", "lengths", "batch_sizes", "exhausted", "table"]
    if not old.first_position:  # else its length is of one epoch only
        names.append("nb_positions")
    return all(getattr(old, name) == getattr(new, name) for name in names)


def same_sequence(old: Plan, plan: Plan, epoch: int) -> Plan:
    """`plan` for the epochs after `epoch`, of a run that goes on as it was in `old`."""
    assert old.mixture is not None
    assert plan.mixture is not None
    mixture = old.mixture
    if mixture.first_position:
        mixture = _following(old, plan.mixture, epoch)
    return _with(plan, old, mixture)


def evened(plan: Plan, count: int) -> int:
    """How many of `count` positions, or some behind them, the rest of an epoch has: whole steps of
    all consumers where the tail rule would leave some out or repeat some. The run is one sequence
    (``exhausted="repeat"``), so the next epoch goes on behind them.
    """
    if plan.tail == "drop":
        return count - count % (plan.batch_size * plan.nb_consumer)
    if plan.tail == "pad" or plan.batch_size == 1 or count < plan.nb_consumer:
        return count + -count % plan.nb_consumer
    return count


def remix(
    old: Plan, plan: Plan, epoch: int, steps: int, dealt: Sequence[Span], left: Sequence[Span]
) -> Remixed:
    """Of an epoch of `old`, `dealt` positions were had and `left` were not, after `steps` steps.

    Raises `StateError` where that can't be said in a table of reasonable length.
    """
    was, new = old.mixture, plan.mixture
    assert was is not None
    assert new is not None
    if was.exhausted != new.exhausted:
        raise StateError(
            f"exhausted was {was.exhausted!r}, is now {new.exhausted!r}: build the mixture as it "
            "was, or start afresh without the state"
        )
    begin = max([was.first_position, *(stop for _, stop in dealt)])
    notes = list(_differences(was, new))
    counts = dict(zip(was.names, was.counts_at(epoch, begin), strict=True))
    debts = dict(zip(was.names, was.debts_at(epoch, begin), strict=True))
    rounds = dict(zip(was.names, was.rounds, strict=True))
    holes = _holes(was, new, epoch, begin, left, notes)
    mixture = replace(
        new,
        nb_positions=max(was.nb_positions, begin),
        first_epoch=epoch,
        first_position=begin,
        first_step=was.first_step + (epoch - was.first_epoch) * was.nb_steps + steps,
        counts=tuple(counts.get(name, 0) for name in new.names),
        debts=tuple(debts.get(name, 0) for name in new.names),
        rounds=tuple(
            _rounds(rounds.get(name), counts.get(name, 0), length, keep=bool(holes))
            for name, length in zip(new.names, new.lengths, strict=True)
        ),
        holes=holes,
    )
    if mixture.restarts:
        mixture = replace(mixture, limits=_limits(was, mixture, epoch, begin))
        count = mixture.nb_until_exhausted if left else 0  # nothing left: the epoch is over
    else:
        count = evened(plan, len(holes) + mixture.nb_positions - begin) - len(holes)
        if count < 0:
            count = evened(plan, len(holes) + plan.batch_size * plan.nb_consumer) - len(holes)
    mixture = replace(mixture, nb_positions=begin + count)
    if not begin:  # nothing of the epoch was had: it is a new one
        mixture = replace(mixture, nb_positions=new.nb_positions, limits=new.limits)
        whole = _with(plan, old, mixture)
        return Remixed(whole, whole, tuple(notes))
    spans = joined(
        [*((hole[0], hole[0] + 1) for hole in holes), (begin, mixture.nb_positions)]
        if mixture.nb_positions > begin
        else [(hole[0], hole[0] + 1) for hole in holes]
    )
    if not spans:
        later = _with(plan, old, _following(_spanless(plan, mixture), new, epoch))
        return Remixed(None, later, tuple(notes))
    rest = _with(plan, old, mixture, spans)
    steps_left = rest.nb_batches(0)
    mixture = replace(mixture, nb_steps=max(1, steps_left))
    rest = replace(rest, mixture=mixture)
    return Remixed(rest, _with(plan, old, _following(rest, new, epoch)), tuple(notes))


def _spanless(plan: Plan, mixture: MixturePlan) -> Plan:
    """A plan of an epoch of which nothing is left."""
    mixture = replace(mixture, nb_steps=0)
    return replace(plan, nb_samples=mixture.nb_positions, mixture=mixture, tail="pad")


def _with(
    plan: Plan, old: Plan, mixture: MixturePlan, spans: tuple[Span, ...] | None = None
) -> Plan:
    """The rounds that are begun go on in the order that they began with."""
    return replace(
        plan,
        nb_samples=mixture.nb_positions,
        mixture=mixture,
        nearby_shuffle=old.nearby_shuffle,
        spans=spans,
    )


def _following(old: Plan, new: MixturePlan, epoch: int) -> MixturePlan:
    """`new` from the epoch after `epoch` on, which `old` is for."""
    was = old.mixture
    assert was is not None
    counts = was.counts_at(epoch, was.nb_positions)
    return replace(
        new,
        first_epoch=epoch + 1,
        first_position=0,
        first_step=was.first_step + was.nb_steps,
        counts=counts,
        debts=(0,) * len(new.names) if new.restarts else was.debts_at(epoch, was.nb_positions),
        rounds=was.rounds,
        holes=(),
    )


def _differences(was: MixturePlan, new: MixturePlan) -> list[str]:
    """Each in words."""
    lengths = dict(zip(was.names, was.lengths, strict=True))
    notes = [f"source {name!r} is new" for name in new.names if name not in lengths]
    notes += [f"source {name!r} was taken out" for name in lengths if name not in new.names]
    for name, length in zip(new.names, new.lengths, strict=True):
        before = lengths.get(name, length)
        if length > before:
            notes.append(f"source {name!r} has {length} samples, had {before}: the new ones come "
                         "when its round is over")  # fmt: skip
        if length < before:
            notes.append(f"source {name!r} has {length} samples, had {before}: it begins a new "
                         "round, so that some of it comes again")  # fmt: skip
    if was.table != new.table:
        notes.append("weights differ")
    return notes


def _rounds(
    rounds: tuple[Round, ...] | None, count: int, length: int, *, keep: bool
) -> tuple[Round, ...]:
    """How sample numbers fall into rounds, of a source that has `length` samples from now on."""
    if rounds is None:
        return ((0, 0, length),)
    known = [one for one in rounds if one[0] <= count] or [rounds[0]]
    first, round_, size = known[-1]
    if not keep:
        known = known[-1:]
    if rounds[-1][2] == length:
        return (*known, *(one for one in rounds if one[0] > count))
    if size == length:
        return tuple(known)
    done, at = divmod(count - first, size)
    if at == 0 or length < size:
        return (*known, (count, round_ + done + (at > 0), length))
    return (*known, (first + (done + 1) * size, round_ + done + 1, length))


def _holes(
    was: MixturePlan,
    new: MixturePlan,
    epoch: int,
    begin: int,
    left: Sequence[Span],
    notes: list[str],
) -> tuple[Hole, ...]:
    """What lies before `begin` and is left, of sources that are there still."""
    spans = [(start, min(stop, begin)) for start, stop in left if start < begin]
    count = sum(stop - start for start, stop in spans)
    if count > _MOST_HOLES:
        raise StateError(
            f"one consumer is {count} positions behind another, which is too far for a change of "
            "the mixture: go on with the mixture as it was until the epoch is over"
        )
    lengths = dict(zip(new.names, new.lengths, strict=True))
    numbers = {name: number for number, name in enumerate(new.names)}
    holes, lost = [], 0
    for start, stop in spans:
        for position, source, number, size in was.located(epoch, start, stop):
            name = was.names[source]
            if lengths.get(name, 0) < was.lengths[source]:
                lost += size
            else:
                holes.append((position, numbers[name], number, size))
    if lost:
        notes.append(f"{lost} samples of sources that were taken out, or have fewer samples, were "
                     "still to come to slower consumers, and don't")  # fmt: skip
    return tuple(holes)


def _limits(was: MixturePlan, new: MixturePlan, epoch: int, begin: int) -> tuple[int, ...]:
    """How many positions of each source may still come in an epoch that ends with its sources."""
    had = was.samples_by_source(epoch, [(was.first_position, begin)])
    left = {
        name: limit * size - count
        for name, limit, size, count in zip(
            was.names, was.limits, was.batch_sizes, had, strict=True
        )
    }
    return tuple(
        max(0, min(left.get(name, length), length)) // size
        for name, length, size in zip(new.names, new.lengths, new.batch_sizes, strict=True)
    )
