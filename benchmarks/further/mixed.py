"""Five token sources by weight against one, and against the mixtures of other libraries.

With the default shuffle each source has samples of its own under way, so 1,000 batches of the five
read 27 MB, and those of one source 16 MB. With a full shuffle these are 35 and 40 MB.

All give dicts of two int64[8, 2048]. The others mix as their documentation shows: grain's
`MapDataset.mix`, torchdata's `MultiNodeWeightedSampler` with `ParallelMapper` in processes, and
Hugging Face's `interleave_datasets` of map-style data sets with torch's `DataLoader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.datasets import NB_SAMPLES, Tokens
from benchmarks.figures import Figure
from benchmarks.further.pairs import measure_in_turn
from benchmarks.spread import ratios, spread

NB_WORKER = 2
BATCH_SIZE = 8
WEIGHTS = {"web": 0.45, "code": 0.25, "books": 0.15, "mail": 0.1, "notes": 0.05}
_MIXED, _ONE = "a mixture of 5", "one source"
_MIXED_FULLY, _ONE_FULLY = (f"{name}, full shuffle" for name in (_MIXED, _ONE))


@contextmanager
def mixed(**options: Any) -> Iterator[Iterator[Any]]:
    """Our mixture."""
    from swift_loader import Mixture, SwiftLoader

    mix = Mixture({name: (Tokens, {}, weight) for name, weight in WEIGHTS.items()})
    with SwiftLoader(mix, batch_size=BATCH_SIZE, worker_per_consumer=NB_WORKER,
                     shuffle=True, **options) as loader:  # fmt: skip
        yield chain.from_iterable(repeat(loader))


@contextmanager
def one(**options: Any) -> Iterator[Iterator[Any]]:
    """One source alone, of as many tokens as the five have."""
    from swift_loader import SwiftLoader

    tokens = {"nb_tokens": len(WEIGHTS) << 20}
    with SwiftLoader(Tokens, tokens, batch_size=BATCH_SIZE, worker_per_consumer=NB_WORKER,
                     shuffle=True, **options) as loader:  # fmt: skip
        yield chain.from_iterable(repeat(loader))


@contextmanager
def grains() -> Iterator[Iterator[Any]]:
    """grain's, of numpy arrays."""
    import grain

    sources = [
        grain.MapDataset.source(Tokens(as_torch=False)).shuffle(seed=number).repeat()
        for number in range(len(WEIGHTS))
    ]
    batches = (
        grain.MapDataset.mix(sources, weights=list(WEIGHTS.values()))
        .to_iter_dataset(grain.ReadOptions(num_threads=0))
        .batch(BATCH_SIZE)
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=NB_WORKER))
    )
    iterator = iter(batches)
    try:
        yield iterator
    finally:
        iterator.close()


class _Fetch:
    """Makes the sample of ``(source, index)``."""

    def __init__(self) -> None:
        self._sources = [Tokens() for _ in WEIGHTS]

    def __call__(self, places: list[tuple[int, int]]) -> Any:
        from torch.utils.data import default_collate

        return default_collate([self._sources[source][index] for source, index in places])


@contextmanager
def nodes() -> Iterator[Iterator[Any]]:
    """torchdata.nodes': indices are mixed, and processes make batches of them."""
    from torch.utils.data import RandomSampler
    from torchdata import nodes as tn

    def indices(number: int) -> Any:
        sampler = RandomSampler(range(NB_SAMPLES))
        return tn.Mapper(tn.SamplerWrapper(sampler), partial(_of, number))

    sampler = tn.MultiNodeWeightedSampler(
        {name: indices(number) for number, name in enumerate(WEIGHTS)}, WEIGHTS
    )
    batches = tn.ParallelMapper(
        tn.Batcher(sampler, BATCH_SIZE), _Fetch(), num_workers=NB_WORKER, method="process"
    )
    yield iter(tn.Loader(batches))


def _of(number: int, index: int) -> tuple[int, int]:
    return number, index


@contextmanager
def interleaved() -> Iterator[Iterator[Any]]:
    """Hugging Face's, with torch's `DataLoader`: Arrow tables of the same windows."""
    import datasets
    from torch.utils.data import DataLoader

    tokens = Tokens(as_torch=False)
    few = [tokens[index] for index in range(1 << 9)]  # they take a while to go round
    columns = {name: [sample[name] for sample in few] for name in ("x", "y")}
    tables = [datasets.Dataset.from_dict(columns).with_format("torch") for _ in WEIGHTS]
    mix = datasets.interleave_datasets(
        tables,
        probabilities=list(WEIGHTS.values()),
        seed=0,
        stopping_strategy="all_exhausted",
    )
    loader: DataLoader[Any] = DataLoader(
        mix,
        BATCH_SIZE,
        shuffle=True,
        num_workers=NB_WORKER,
        persistent_workers=True,
        drop_last=True,  # `Device` takes batches of one size
    )
    yield chain.from_iterable(repeat(loader))


OTHERS = {
    "grain's mix": grains,
    "torchdata's MultiNodeWeightedSampler": nodes,
    "HF interleave_datasets and DataLoader": interleaved,
}
OPEN: dict[str, Callable[[], Any]] = {
    _MIXED: mixed,
    _ONE: one,
    _MIXED_FULLY: partial(mixed, nearby_shuffle=0),
    _ONE_FULLY: partial(one, nearby_shuffle=0),
    **OTHERS,
}


def rate(who: str, window_s: float) -> dict[str, float]:
    """Batches a second."""
    with OPEN[who]() as batches:
        return measure.batches_per_s(batches, window_s)


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Rates of ours over the others'."""
    window_s = 1.0 if is_quick else 4.0
    rounds = measure_in_turn(
        "mixtures",
        {who: partial(rate, who=who, window_s=window_s) for who in OPEN},
        is_quick,
    )
    figures = []
    pairs = [(_MIXED, who) for who in (_ONE, *OTHERS)]
    for mine, who in [*pairs, (_MIXED_FULLY, _ONE_FULLY)]:
        ours = rounds.column(mine, "batches_per_s")
        theirs = rounds.column(who, "batches_per_s")
        if ours and theirs:
            figures.append(
                Figure(
                    "mixed",
                    f"{mine}: batches a second, over {who}",
                    ratios(ours, theirs),
                    ours=f"{spread(ours).median:.0f}/s",
                    theirs=f"{spread(theirs).median:.0f}/s",
                )
            )
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "mixed"])
