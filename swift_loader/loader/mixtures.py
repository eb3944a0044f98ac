"""The plan of a `Mixture`, for these consumers and batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

from swift_loader.errors import refuse
from swift_loader.loader.options import Config
from swift_loader.order.order import Order
from swift_loader.order.part import Number
from swift_loader.order.planned import PlannedOrder
from swift_loader.order.told import inner_number, inner_of, notes_of
from swift_loader.plan import Plan
from swift_loader.plan.mixture import MixturePlan
from swift_loader.plan.mixture_fields import MOST_OF_BATCH
from swift_loader.plan.partition import PartitionBySteps
from swift_loader.sources.mixture import Mixing
from swift_loader.telemetry.metrics import Meter

__all__ = ["counting_sources", "plan_of_mixture", "warn_of_other_mixture"]


def plan_of_mixture(config: Config, mixing: Mixing, lengths: tuple[int, ...], seed: int) -> Plan:
    """`lengths` by source, as the workers say. Raises `ConfigError`."""
    batch_size = 1 if mixing.by_batch else config.batch_size
    none = (0,) * len(lengths)
    sizes = tuple(
        (size or config.batch_size) if mixing.by_batch else 1 for size in mixing.batch_sizes
    )
    for name, size in zip(mixing.names, sizes, strict=True):
        if size > MOST_OF_BATCH:
            refuse(f"sources[{name!r}].batch_size", size, f"give {MOST_OF_BATCH} at most")
    table = mixing.table
    if table is None:  # by length: an epoch has all of each
        table = ((0, tuple(length / size for length, size in zip(lengths, sizes, strict=True))),)
    mixture = MixturePlan(
        names=mixing.names,
        lengths=lengths,
        nb_positions=0,
        table=table,
        step_positions=batch_size * config.nb_consumer,
        nb_steps=0,
        batch_sizes=sizes,
        exhausted=mixing.exhausted,
        first_epoch=0,
        first_position=0,
        first_step=0,
        counts=none,
        debts=none,
        limits=(),
        rounds=tuple(((0, 0, length),) for length in lengths),
    )
    if mixing.exhausted == "repeat":
        nb_positions = _epoch(config, mixing, mixture)
    else:
        mixture = replace(mixture, limits=_limits(mixture))
        nb_positions = mixture.nb_until_exhausted
    parts = PartitionBySteps(nb_positions, config.nb_consumer, batch_size, config.tail)
    mixture = replace(mixture, nb_positions=nb_positions, nb_steps=max(1, parts.nb_batches(0)))
    return Plan(
        nb_positions,
        batch_size,
        config.nb_consumer,
        config.shuffle,
        config.nearby_shuffle,
        seed,
        config.tail,
        mixture=mixture,
    )


def _epoch(config: Config, mixing: Mixing, mixture: MixturePlan) -> int:
    """Positions of an epoch. The tail rule has nothing to drop or to repeat in it."""
    weights = mixture.weights_now
    samples = mixing.samples_per_epoch
    if samples is None:
        samples = sum(
            length for length, weight in zip(mixture.lengths, weights, strict=True) if weight
        )
    mean = sum(w * size for w, size in zip(weights, mixture.batch_sizes, strict=True))
    positions = max(1, round(samples * sum(weights) / mean)) if mixing.by_batch else samples
    consumers = config.nb_consumer
    if config.tail == "drop":
        step = mixture.step_positions
        return max(step, positions - positions % step)
    if config.tail == "pad" or mixing.by_batch:
        return -(-positions // consumers) * consumers
    return positions


def _limits(mixture: MixturePlan) -> tuple[int, ...]:
    limits = []
    for name, length, size, weight in zip(
        mixture.names, mixture.lengths, mixture.batch_sizes, mixture.weights_now, strict=True
    ):
        if weight and length < size:
            refuse(f"sources[{name!r}].batch_size", size, f"it has {length} samples, which make no "
                   f"batch, and exhausted={mixture.exhausted!r} ends with them")  # fmt: skip
        limits.append(length // size)
    return tuple(limits)


def counting_sources(order: Order, meter: Meter) -> Callable[[Number, float], None] | None:
    """What counts the samples of a delivered batch by source; None: it is no mixture's.

    Most batches are counted some later, several that follow each other at once.
    """
    inner, by_source = inner_of(order), meter.by_source
    if by_source is None or not isinstance(inner, PlannedOrder):
        return None

    def count(batches: list[tuple[Number, float]]) -> None:
        number, count = inner_number(batches[0][0]), len(batches)
        samples = inner.samples_by_source(number, count)
        by_source.add(samples, sum(wait_s for _, wait_s in batches))

    by_source.flush()  # those of the order before
    by_source.count = count
    return by_source.delivered


def warn_of_other_mixture(order: Order) -> None:
    """Where `order` goes on from a state of another mixture, say what differs."""
    for note in notes_of(order):
        text = f"the state is of another mixture: {note}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
