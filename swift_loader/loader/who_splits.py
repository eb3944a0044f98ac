"""What training processes can say of a stream before any worker runs: whether it splits itself.

All workers of all ranks must split a stream in the same way. So the loader looks at it where it is
built, and decides in `start()`: with `torch.distributed`, all ranks do it together. A stream that
is not the same on every rank was made for its rank. Where nothing is found, workers decide by what
the stream asks for: see `swift_loader.worker.split`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch.utils.data import IterableDataset

from swift_loader.loader.options import Config
from swift_loader.ranks.agreement import known_rank, of_all_ranks
from swift_loader.worker.likeness import likeness_of, likeness_of_samples
from swift_loader.worker.rank_signs import (
    kind_that_splits,
    names_of_ranks,
    splits_by_all_ranks,
    that_count,
    waits_for_all_ranks,
)
from swift_loader.worker.recipe import given

__all__ = ["Decision", "Look", "decided_by_all", "look_at"]


@dataclass(frozen=True)
class Decision:
    """Who splits; "auto": the workers find out."""

    by: Literal["auto", "workers", "ranks"]
    why: str = ""
    in_doubt: bool = False


@dataclass(frozen=True)
class Look:
    """What one training process sees of its stream."""

    option: Literal["auto", "workers", "ranks"] = "auto"
    kind: str = ""
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()  # that `worker_init_fn` was given
    likeness: bytes = b""
    samples: bytes = b""  # the likeness of a data set that is no stream
    waits: bool = False  # its workers wait for those of all ranks
    by_all_ranks: str = ""  # why it is wrong where several ranks are one consumer

    @classmethod
    def at(cls, source: Any, named: dict[str, Any], init: Any) -> Look:
        """At a stream, or at what builds one of `named`. `init` is the `worker_init_fn`."""
        kinds = (kind_that_splits(one) for one in (source, *named.values()))
        return cls(
            "auto",
            next(filter(None, kinds), ""),
            tuple(sorted(names_of_ranks(source, named, init))),
            tuple(_numbers(init)),
            likeness_of(source, named, init),
        )

    def decided(self, nb_consumer: int, everybody: Sequence[Look] = ()) -> Decision:
        """Of what `everybody` sees, this process among them, where they can say it."""
        if self.option != "auto" or nb_consumer == 1:
            return Decision(self.option)
        looks = everybody or (self,)
        kinds = [look.kind for look in looks if look.kind]
        if kinds:
            return Decision("workers", kinds[0])
        why = []
        names = that_count({name for look in looks for name in look.names})
        if names:
            why.append(f"it knows {', '.join(names[:4])}")
        if len({look.likeness for look in looks}) > 1:
            why.append("it is not the same on every rank")
        if not why and len(self.numbers) > 1 and nb_consumer in self.numbers:
            why.append(f"worker_init_fn was given {', '.join(map(str, self.numbers))}")
        return Decision("workers", " and ".join(why), in_doubt=True) if why else Decision("auto")


def decided_by_all(look: Look, nb_consumer: int, collective: bool) -> Decision:
    """The decision of all ranks together, if they can be asked (`collective`)."""
    return look.decided(nb_consumer, of_all_ranks(look) if collective else ())


def look_at(config: Config) -> Look:
    """Look at the data set of a loader that is built, or at what builds it."""
    look = Look(config.stream_split)
    source, named = config.dataset_class, config.dataset_kwargs
    if not _may_be_a_stream(config):
        if source is given and config.nb_consumer > 1 and not config.by_sampler:
            return replace(look, samples=likeness_of_samples(named["dataset"]))
        return look
    if source is given:
        source, named = named["dataset"], {}
    nb_ranks = (known_rank() or (0, 1))[1]
    if config.stream_split == "auto" and max(config.nb_consumer, nb_ranks) > 1:
        look = Look.at(source, named, config.worker_init_fn)
    parts = [source, *named.values()]
    by_all = splits_by_all_ranks(parts, config.nb_consumer)
    return replace(look, waits=waits_for_all_ranks(parts), by_all_ranks=by_all)


def _may_be_a_stream(config: Config) -> bool:
    """Whether it may be one that somebody must split."""
    if config.shards is not None or config.by_sampler:
        return False
    source = config.dataset_class
    if source is given:
        source = type(config.dataset_kwargs["dataset"])
    if not isinstance(source, type):
        return True  # a function: nobody knows what it gives
    return issubclass(source, IterableDataset) or not (
        hasattr(source, "__getitem__") or hasattr(source, "__getitems__")
    )


def _numbers(init: Any) -> Iterator[int]:
    """Whole numbers among the arguments that a function was given before."""
    while isinstance(init, functools.partial):
        for one in (*init.args, *init.keywords.values()):
            if type(one) is int:
                yield one
        init = init.func
