"""The set-ups of the matrix, and how each is compared.

Run as a program, it compares those that it reads, as JSON, from stdin: workers that import the
script (`start_method="main"`) need a script, and the process of a test may have none.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.differential import samples
from tests.differential.loaders import through_ours, through_torch
from tests.differential.outcome import Outcome
from tests.differential.pairs import Setup, every

_N = 23

_WORKERS: dict[str, dict[str, Any]] = {
    "local": {},
    "threads": {"threads_per_worker": 2},
    "endpoint": {},
}
_STARTS = ["fresh", "fork", "main", "thread"]
_MAP_STYLE = {
    "batch_size": [1, 4, 23, 40],
    "drop_last": [False, True],
    "workers": [1, 2, 3],
    "collate": ["default", "listed"],
    "kind": list(_WORKERS),
    "start_method": _STARTS,
    "staged": [False, True],
    "resumed_after": [None, 0, 2],
    "made": ["written out", "from_dataloader"],
    "ranks": [1, 2, 3],
}
_STREAMS = {
    "stream": ["Split", "Sized", "Whole", "ByRank"],
    "batch_size": [4, None],
    "drop_last": [False, True],
    "workers": [1, 2],
    "collate": ["default", "listed"],
    "kind": ["local", "threads"],
    "start_method": ["fresh", "fork", "main"],  # threads and endpoints refuse streams
    "staged": [False, True],
    "resumed_after": [None, 2],
    "made": ["written out", "from_dataloader"],
    "ranks": [1, 2, 3],
    "stream_split": ["auto", "workers"],
}


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


#: For the ranks, and the one of them. Those without a generator draw from torch's global one.
_MADE: dict[str, Callable[[int, int], Any]] = {
    "list": lambda ranks, rank: [5, 3, 1, 1, 0, 22, 7, 8, 9, 4, 2],
    "random": lambda ranks, rank: RandomSampler(range(_N), generator=_generator()),
    "random, global": lambda ranks, rank: RandomSampler(range(_N)),
    "replacement": lambda ranks, rank: RandomSampler(range(_N), True, 40, _generator()),
    "weighted": lambda ranks, rank: WeightedRandomSampler([1.0] * _N, 30, True, _generator()),
    "weighted, global": lambda ranks, rank: WeightedRandomSampler([1.0] * _N, 20, False),
    "subset": lambda ranks, rank: SubsetRandomSampler(range(3, 17), _generator()),
    "batches": lambda ranks, rank: BatchSampler(_MADE["random"](ranks, rank), 4, False),
    "batch sampler": lambda ranks, rank: BatchSampler(_MADE["random"](ranks, rank), 4, False),
    "distributed": lambda ranks, rank: DistributedSampler(samples.Keyed(), ranks, rank, seed=3),
}
_SAMPLERS = {
    "sampler": list(_MADE),
    "batch_size": [1, 4, None],
    "drop_last": [False, True],
    "kind": list(_WORKERS),
    "start_method": _STARTS,
    "staged": [False, True],
    "resumed_after": [None, 2],
    "made": ["written out", "from_dataloader"],
    "ranks": [1, 2, 3],
}


def _is_startable(setup: Setup) -> bool:
    """Endpoints stand on other machines, so nothing is forked for them, and no `DataLoader` has
    any. Threads have no threads of their own.
    """
    if setup["kind"] == "endpoint":
        return bool(setup["start_method"] == "fresh" and setup["made"] == "written out")
    return bool(setup["kind"] == "local" or setup["start_method"] != "thread")


def _stream_is_valid(setup: Setup) -> bool:
    """What torch refuses, and what is a known difference of one rank, has tests of its own."""
    if setup["stream"] == "Sized" and setup["ranks"] == 3:
        return False  # enough
    if setup["batch_size"] is None and (setup["drop_last"] or setup["collate"] == "listed"):
        return False
    if setup["stream"] == "Whole" and (setup["workers"] > 1 or setup["ranks"] > 1):
        return False
    return bool(setup["ranks"] > 1 or setup["stream_split"] == "auto")


def _sampler_is_valid(setup: Setup) -> bool:
    batch_size = {"batches": None, "batch sampler": 4}.get(setup["sampler"], setup["batch_size"])
    if setup["batch_size"] != batch_size or (setup["ranks"] > 1) > (
        setup["sampler"] == "distributed"
    ):
        return False
    whole = batch_size is None or setup["sampler"] == "batch sampler"
    return _is_startable(setup) and not (whole and setup["drop_last"])


class Matrix(NamedTuple):
    """`compare(setup, address of an endpoint)` fails where the two loaders differ."""

    axes: Mapping[str, Sequence[Any]]
    valid: Callable[[Setup], bool]
    compare: Callable[[Setup, str], None]

    def setups(self) -> list[Setup]:
        """All that are valid."""
        return every(self.axes, self.valid)


def _both(setup: Setup) -> dict[str, Any]:
    """What both loaders get."""
    both = {name: setup[name] for name in ("batch_size", "drop_last", "workers")}
    if setup["collate"] == "listed":
        both["collate_fn"] = samples.listed
    return both


def _own(setup: Setup, address: str) -> dict[str, Any]:
    """What only this loader gets."""
    names = ("staged", "resumed_after", "made", "start_method")
    own = {name: setup[name] for name in names} | _WORKERS[setup["kind"]]
    if setup["kind"] == "endpoint":
        own.update(workers=0, remote_workers=[address])
    return own


@cache
def _by_torch(samples_of: str, ranks: int, **both: Any) -> list[Outcome]:
    """What torch gives, once for all the set-ups that differ in our options alone."""
    return through_torch(getattr(samples, samples_of)(kind="int"), ranks=ranks, **both)


def _compare_map_style(setup: Setup, address: str) -> None:
    both, ranks = _both(setup), setup["ranks"]
    ours = both | _own(setup, address)
    if ranks > 1 and not setup["drop_last"]:
        ours["tail"] = "pad"  # as `DistributedSampler` does
    theirs = _by_torch("MapStyle", ranks, **both)
    found = through_ours(samples.MapStyle("int"), ranks=ranks, **ours)
    if ranks == 1:
        assert found == theirs, setup
        return
    assert [one.length for one in found] == [one.length for one in theirs], setup
    _assert_same_sizes(found, theirs, setup)
    if not setup["drop_last"]:
        assert all_items(found) == all_items(theirs), setup


def _compare_stream(setup: Setup, address: str) -> None:
    both, ranks = _both(setup), setup["ranks"]
    ours = both | _own(setup, address) | {"stream_split": setup["stream_split"]}
    stream = setup["stream"]
    theirs = _by_torch(stream, ranks, **both)
    found = through_ours(getattr(samples, stream)(kind="int"), ranks=ranks, **ours)
    if ranks == 1 or setup["stream_split"] == "workers" or stream == "ByRank":
        assert found == theirs, setup
        return
    once = Counter(range(_N))  # the known difference; torch gives them to each rank
    if setup["drop_last"]:
        assert all_items(found) <= once, setup
    else:
        assert all_items(found) == once, setup


def _compare_sampler(setup: Setup, address: str) -> None:
    name, ranks = setup["sampler"], setup["ranks"]
    option = "batch_sampler" if name == "batch sampler" else "sampler"
    both: dict[str, Any] = {option: partial(_MADE[name], ranks), "workers": 2}
    if option == "sampler":
        both.update(batch_size=setup["batch_size"], drop_last=setup["drop_last"])
    if setup["batch_size"] is not None:
        both["collate_fn"] = samples.listed
    torch.manual_seed(7)
    theirs = through_torch(samples.Keyed(), ranks=ranks, **both)
    torch.manual_seed(7)
    found = through_ours(samples.Keyed(), ranks=ranks, **both | _own(setup, address))
    shuffles = name in ("random", "random, global") and setup["made"] == "from_dataloader"
    if not shuffles:
        assert found == theirs, setup
        return
    if setup["batch_size"] is None:  # the known difference: another order
        assert Counter(found[0].batches) == Counter(theirs[0].batches), setup
        return
    _assert_same_sizes(found, theirs, setup)
    if not setup["drop_last"]:
        assert _listed(found) == _listed(theirs), setup


MATRICES = {
    "map style": Matrix(_MAP_STYLE, _is_startable, _compare_map_style),
    "streams": Matrix(_STREAMS, _stream_is_valid, _compare_stream),
    "samplers": Matrix(_SAMPLERS, _sampler_is_valid, _compare_sampler),
}


def _assert_same_sizes(found: list[Outcome], theirs: list[Outcome], setup: Setup) -> None:
    for one, other in zip(found, theirs, strict=True):
        assert list(map(_size, one.batches)) == list(map(_size, other.batches)), setup


def _size(batch: Any) -> int:
    return len(batch[1]) if batch[0] == "list" else len(_items(batch))


def _items(batch: Any) -> list[int]:
    """The samples of a frozen batch of ints."""
    if batch[0] == "int":
        return [int(batch[1])]
    if batch[0] == "list":
        return [int(one[1]) for one in batch[1]]
    listed: list[int] = np.frombuffer(batch[-1], np.int64).tolist()
    return listed


def all_items(outcomes: Iterable[Outcome]) -> Counter[int]:
    """The samples of all ranks, counted."""
    return Counter(i for one in outcomes for batch in one.batches for i in _items(batch))


def _listed(outcomes: Iterable[Outcome]) -> Counter[Any]:
    return Counter(sample for one in outcomes for batch in one.batches for sample in batch[1])


def _spawned_is_the_same() -> None:
    """Torch's spawned workers give what its forked ones do, and ours."""
    for dataset in (samples.MapStyle("dict"), samples.Split(kind="pair")):
        options = {"batch_size": 5, "workers": 2}
        spawned = through_torch(dataset, context="spawn", **options)
        assert spawned == through_torch(dataset, **options)
        assert spawned == through_ours(dataset, start_method="main", **options)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of more workers than CPUs, and of epochs without a batch
    wanted = json.load(sys.stdin)
    if wanted["spawned"]:
        _spawned_is_the_same()
    for name, setup in wanted["setups"]:
        MATRICES[name].compare(setup, "")
