"""The plan: batch `k` of epoch `e` for consumer `c`, as a pure function.

Whoever holds the plan can make any batch: nothing else is known about an epoch, and nothing in it
grows with the number of samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from operator import index
from typing import Any, NoReturn, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .keys import key64
from .mixture import MixturePlan, Shuffling
from .partition import Partition, PartitionBySteps, Span, Stream, Tail
from .shuffle import shuffled
from .stretches import indices_of

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

_BATCH, _SPANS = 4, 5  # purposes of keys; shuffle.py has 1 to 3
_MAX_CONSUMERS = 1 << 20  # a resume looks at the state of each
_MAX_SAMPLES = 2**62


@dataclass(frozen=True)
class Plan:
    """Everything that decides which samples come when. Frozen, hashable, small to pickle.

    Parameters
    ----------
    nb_samples:
        Length of the dataset, at most 2**62. 0 makes empty epochs.
    batch_size:
        Samples in a batch of one consumer.
    nb_consumer:
        Training processes that share an epoch; each owns a contiguous part of its order.
    shuffle:
        Whether each epoch has an order of its own. Without, every epoch is ``0, 1, ..., n - 1``.
    nearby_shuffle:
        Samples under way in a shuffle: runs of ``isqrt(nearby_shuffle / 32)`` neighbours from all
        over the dataset are mixed; see `swift_loader.plan.shuffle`. 0, or less than 128, or
        the length of the dataset or more, is a full shuffle. Means nothing when `shuffle` is false.
    seed:
        In ``[0, 2**64)``.
    tail:
        What happens where samples do not fill batches evenly; see
        `swift_loader.plan.partition.Partition`.
    spans:
        The positions ``[start, stop)`` that are dealt out, ascending and disjoint: what is left of
        an interrupted epoch. None is the whole epoch. The order is that of the whole epoch.
    mixture:
        Of which source, and which sample of it, the position is. Its epochs have `nb_samples`
        positions, which are dealt out step by step (`PartitionBySteps`), and are not shuffled;
        `shuffle` is about each source's own rounds.
    calls:
        What the data set is told before a batch of this plan is made, each as text; see
        `swift_loader.order.told`. Nothing of the order depends on it.
    shards:
        What is left of a stream's shards, as text; see `swift_loader.order.sharded`. Empty: all.

    Raises
    ------
    ConfigError
        An option can't work, or there are fewer samples than consumers and ``tail="balanced"``.
        Of spans that have fewer positions than there are consumers, some consumers get nothing.
    """

    nb_samples: int
    batch_size: int
    nb_consumer: int
    shuffle: bool
    nearby_shuffle: int
    seed: int
    tail: Tail = "balanced"
    spans: tuple[Span, ...] | None = None
    mixture: MixturePlan | None = None
    calls: tuple[str, ...] = ()
    shards: str = ""

    def __post_init__(self) -> None:
        def check(name: str, low: int, high: int | None, fix: str) -> None:
            value = getattr(self, name)
            number = _integer(value)
            if number is None or number < low or (high is not None and number > high):
                bound = f"of at least {low}" if high is None else f"in [{low}, {high}]"
                _refuse(name, value, f"must be an integer {bound}", fix)
            object.__setattr__(self, name, number)

        check("nb_samples", 0, _MAX_SAMPLES, "give the length of the dataset")
        check("batch_size", 1, None, "give the number of samples in a batch of one consumer")
        check("nb_consumer", 1, _MAX_CONSUMERS, "give the number of training processes")
        check("nearby_shuffle", 0, None, "give the window in samples, or 0 for a full shuffle")
        check("seed", 0, 2**64 - 1, "give another seed, or none")
        if not isinstance(self.shuffle, (bool, np.bool_)):
            _refuse("shuffle", self.shuffle, "must be a bool", "give True or False")
        object.__setattr__(self, "shuffle", bool(self.shuffle))
        if self.tail not in get_args(Tail):
            fix = "give one of " + ", ".join(map(repr, get_args(Tail)))
            _refuse("tail", self.tail, "is not a rule for the tail", fix)
        if self.mixture is not None and self.nb_samples != self.mixture.nb_positions:
            fix = f"give {self.mixture.nb_positions}"
            _refuse("nb_samples", self.nb_samples, "is not what an epoch of the mixture has", fix)
        if self.spans is not None:
            object.__setattr__(self, "spans", _checked_spans(self.spans, self.nb_samples))
        elif self.tail == "balanced" and 0 < self.nb_samples < self.nb_consumer:
            _refuse(
                "nb_consumer",
                self.nb_consumer,
                f"is more than there are samples ({self.nb_samples}), so not every consumer can"
                ' have one of its own under tail="balanced"',
                'give tail="pad" to have samples repeated, or use fewer consumers',
            )

    @cached_property
    def stream(self) -> Stream:
        """The positions that are dealt out."""
        return Stream(((0, self.nb_samples),) if self.spans is None else self.spans)

    @cached_property
    def partition(self) -> Partition:
        """How they fall into parts and batches."""
        kind = Partition if self.mixture is None else PartitionBySteps
        return kind(len(self.stream), self.nb_consumer, self.batch_size, self.tail)

    @cached_property
    def full_batch(self) -> int:
        """Samples in a batch that is not short; 0: they differ by source."""
        sizes = (1,) if self.mixture is None else self.mixture.batch_sizes
        return self.batch_size * sizes[0] if len(set(sizes)) == 1 else 0

    def nb_batches(self, consumer: int) -> int:
        """Batches of a consumer in one epoch; IndexError if there is no such consumer.

        The same for all, but for ``tail="balanced"`` where there are not places enough.
        """
        if not 0 <= consumer < self.nb_consumer:
            raise IndexError(f"consumer {consumer} is not in [0, {self.nb_consumer})")
        return self.partition.nb_batches(consumer)

    def batch(self, epoch: int, consumer: int, k: int) -> NDArray[np.int64]:
        """Sample indices of batch `k`: a new int64 array, of shape ``(samples in the batch,)``.

        Time and memory are proportional to the batch (and to the runs of a nearby shuffle, up to
        a bound; see `swift_loader.plan.shuffle`). IndexError if there is no such batch.
        """
        self._check(consumer, k)
        return self.batches(epoch, consumer, k, k + 1)

    def batches(self, epoch: int, consumer: int, first: int, last: int) -> NDArray[np.int64]:
        """Sample indices of the batches ``[first, last)``, one batch after the other.

        Needs ``0 <= first < last <= nb_batches(consumer)``.
        """
        spans = self._spans_of(consumer, first, last)
        if self.mixture is not None:
            return indices_of(self.mixture, epoch, spans, self._shuffling)
        pieces = [self._indices(epoch, *span) for span in spans]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def samples_by_source(self, epoch: int, consumer: int, first: int, last: int) -> list[int]:
        """Of a mixture: how many samples of each source the batches ``[first, last)`` have."""
        assert self.mixture is not None
        self._check(consumer, last - 1)
        return self.mixture.samples_by_source(epoch, self._spans_of(consumer, first, last))

    def _spans_of(self, consumer: int, first: int, last: int) -> list[Span]:
        """Where the batches ``[first, last)`` stand."""
        return [
            span
            for start, stop in self.partition.segments(consumer, first, last)
            for span in self.stream.positions(start, stop)
        ]

    def batch_seed(self, epoch: int, consumer: int, k: int) -> int:
        """Seed in ``[0, 2**64)`` of the random draws in a batch; IndexError if there is no such.

        The spans count too: a sample that an interrupted epoch left over is not drawn with the
        seeds of the batches that were delivered before.
        """
        self._check(consumer, k)
        return key64(self.seed_key(epoch, consumer), k)

    def seed_key(self, epoch: int, consumer: int) -> int:
        """The seed of batch `k`, which there must be, is ``key64(seed_key, k)``."""
        return _consumer_key(self.seed, epoch, consumer, self._spans_key)

    def fingerprint(self) -> dict[str, JSON]:
        """Each of `FIELDS`, for JSON: with the same fields, and shards, the order is the same."""
        plain: dict[str, JSON] = {name: getattr(self, name) for name in FIELDS}
        del plain["mixture"]
        if self.mixture is not None:
            plain["mixture"] = self.mixture.plain()
        if self.spans is not None:
            plain["spans"] = [[start, stop] for start, stop in self.spans]
        return plain

    def _check(self, consumer: int, k: int) -> None:
        nb_batches = self.nb_batches(consumer)
        if not 0 <= k < nb_batches:
            raise IndexError(f"batch {k} is not in [0, {nb_batches})")

    def _indices(self, epoch: int, first: int, last: int) -> NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(first, last, dtype=np.int64)
        return shuffled(
            first,
            last,
            nb_samples=self.nb_samples,
            window=self.nearby_shuffle,
            seed=self.seed,
            epoch=epoch,
        )

    @cached_property
    def _shuffling(self) -> Shuffling:
        return Shuffling(self.shuffle, self.nearby_shuffle, self.seed)

    @cached_property
    def _spans_key(self) -> int:
        return key64(_SPANS, *(bound for span in self.spans or () for bound in span))


#: Those that decide about the order.
FIELDS = tuple(field.name for field in fields(Plan) if field.name not in ("calls", "shards"))


@lru_cache(maxsize=64)
def _consumer_key(seed: int, epoch: int, consumer: int, spans_key: int) -> int:
    return key64(_BATCH, seed, epoch, consumer, spans_key)


def _integer(value: Any) -> int | None:
    """`value` as an int if it is an integer of any type (a bool is not), else None."""
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def _checked_spans(spans: Iterable[Any], nb_samples: int) -> tuple[Span, ...]:
    fix = "give ascending, disjoint, non-empty (start, stop) pairs within the samples"
    checked: list[Span] = []
    end = 0
    try:
        for pair in spans:
            start, stop = (index(bound) for bound in pair)
            if not end <= start < stop <= nb_samples:
                _refuse("spans", pair, f"does not fit after {end} in [0, {nb_samples}]", fix)
            checked.append((start, stop))
            end = stop
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"spans={spans!r} are not pairs of integers; {fix}") from error
    return tuple(checked)


def _refuse(name: str, value: object, problem: str, fix: str) -> NoReturn:
    raise ConfigError(f"{name}={value!r} {problem}; {fix}")
