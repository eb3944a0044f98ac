"""Mixtures by real workers: token for token what a plain loop over the plan gives."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from swift_loader import ConfigError, Mixture, Packed, Source, StateError, SwiftLoader
from tests import datasets
from tests.process.mixtures import LENGTHS, Documents, a_few_resumes, mixture_of
from tests.unit.plan.mixtures import Run, plan_of

pytestmark = pytest.mark.usefixtures("nothing_left")
WEIGHTS = {"web": 0.6, "code": 0.3, "books": 0.1}


@pytest.mark.parametrize("seed", [0])
def test_stopped_anywhere_it_goes_on_with_other_numbers_and_weights(seed: int) -> None:
    a_few_resumes(SwiftLoader, (1, 3), seed)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100, 150))
def test_fifty_rounds_of_that(seed: int) -> None:
    a_few_resumes(SwiftLoader, (1, 3), seed, 4)


def test_without_workers_the_batches_are_the_same() -> None:
    runs = []
    for workers in (0, 2):
        with SwiftLoader(
            mixture_of(WEIGHTS), batch_size=5, worker_per_consumer=workers, shuffle=True, seed=1
        ) as loader:
            runs.append([batch.tolist() for _ in range(2) for batch in loader])
    assert runs[0] == runs[1]


class Counted(Documents):
    """Writes down each document that is made."""

    def __init__(self, n: int, source: int, path: str) -> None:
        super().__init__(n, source)
        self.path = path

    def __getitem__(self, i: int) -> Any:
        with open(self.path, "a") as file:
            file.write(f"{self.source} {i}\n")
        return super().__getitem__(i)


def test_what_a_cache_keeps_of_a_mixture_is_made_once(tmp_path: Path) -> None:
    made = tmp_path / "made"
    arguments = {"path": str(made)}
    mixture = Mixture(
        {
            "web": Source(Counted, {"n": 12, "source": 0, **arguments}, 0.7),
            "code": Source(Counted, {"n": 5, "source": 1, **arguments}, 0.3),
        },
        samples_per_epoch=20,
    )
    runs = []
    for cache in (None, "10MB"):
        made.write_text("")
        with SwiftLoader(
            mixture, batch_size=4, shuffle=True, cache=cache, num_workers=2, validate=False
        ) as loader:
            runs.append([batch.tolist() for _ in range(3) for batch in loader])
    assert runs[0] == runs[1]
    lines = made.read_text().splitlines()
    assert len(lines) == len(set(lines))
    assert len(lines) > 12


class Text:
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> str:
        return f"text {i}"

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def upper(sample: str) -> str:
    return sample.upper()


def test_samples_carry_their_source_and_its_transform() -> None:
    mix = Mixture(
        {"a": Source(Text, {"n": 6}, 1, transform=upper), "b": (Text, {"n": 6}, 1)},
        with_source=True,
    )
    with SwiftLoader(mix, batch_size=4) as loader:
        for texts, names in loader:
            for text, name in zip(texts, names, strict=True):
                assert text.startswith("TEXT" if name == "a" else "text")
        stats = loader.stats()
    assert {name: one.samples for name, one in stats.sources.items()} == {"a": 6, "b": 6}
    assert "source a: 6 samples (50.0%)" in repr(stats)


def test_homogeneous_batches_have_their_own_size_and_collate_fn() -> None:
    mix = Mixture(
        {
            "text": Source(Text, {"n": 20}, 1, batch_size=5, collate_fn=len, tokens=3),
            "numbers": Source(datasets.Numbers, {"n": 12}, 2),
        },
        mix="batch",
    )
    with SwiftLoader(mix, batch_size=2, worker_per_consumer=2, shuffle=True) as loader:
        batches = list(loader)
        stats = loader.stats()
    texts = [batch for batch in batches if batch == 5]
    rows = [batch for batch in batches if not isinstance(batch, int)]
    assert abs(len(rows) - 2 * len(texts)) <= 2
    assert all(len(indices) == 2 for _, indices in rows)
    assert stats.sources["text"].samples == 5 * len(texts)
    assert stats.sources["text"].tokens == 15 * len(texts)
    assert stats.sources["numbers"].samples == 2 * len(rows)
    assert json.dumps(stats.as_dict())


def test_tokens_of_a_packed_source_are_counted() -> None:
    packed = [Packed([list(range(50))] * 8, 16) for _ in range(2)]
    mix = Mixture(
        {"a": (packed[0], 1), "b": Source(packed[1], weight=1, tokens=15), "c": ([{}] * 9, 1)},
        mix="batch",
    )
    with SwiftLoader(mix, batch_size=2, worker_per_consumer=0, validate=False) as loader:
        list(loader)
        sources = loader.stats().sources
    assert sources["a"].samples > 0
    assert sources["a"].tokens == 16 * sources["a"].samples
    assert sources["b"].tokens == 15 * sources["b"].samples
    assert sources["c"].tokens is None


def test_a_source_that_fetches_many_at_once_is_asked_once() -> None:
    mix = Mixture({"a": (datasets.ManyAtOnce, {"n": 30}, 1), "b": (datasets.Numbers, {"n": 30}, 1)})
    with SwiftLoader(mix, batch_size=6) as loader:
        assert sum(len(indices) for _, indices in loader) == 60


def test_members_may_be_built_already_and_arrays_are_shared() -> None:
    mix = Mixture({"rows": (np.arange(40.0), 3), "few": (torch.arange(10.0), 1)})
    with SwiftLoader(mix, batch_size=4) as loader:
        assert sum(len(batch) for batch in loader) == 50


def test_packed_sources_come_token_for_token_as_by_a_plain_loop() -> None:
    packed = {name: Packed(Documents(n, 1), 11, fields=["tokens"]) for name, n in LENGTHS.items()}
    weights = {"web": 3, "code": 2, "books": 1}
    mix = Mixture(packed, weights=weights)
    plan = plan_of({name: len(one) for name, one in packed.items()}, weights=weights, batch_size=3)
    run = Run(plan)
    with SwiftLoader(mix, batch_size=3, shuffle=True, nearby_shuffle=0, seed=7) as loader:
        for batch in loader:
            want = run.take(0)
            assert want is not None
            assert batch["tokens"].tolist() == [
                packed[name][index]["tokens"].tolist() for name, index in want
            ]


def test_a_bad_sample_names_its_place_and_may_be_skipped() -> None:
    mix = {
        "good": (datasets.Numbers, {"n": 10}, 1),
        "bad": (datasets.Raises, {"n": 10, "bad": (3,)}, 1),
    }
    # Nothing of the next epoch, which has it too, is made.
    options: Any = {"on_error": "skip", "validate": False, "prefetch_epochs": 0}
    with SwiftLoader(Mixture(mix), batch_size=4, **options) as loader:
        assert sum(len(indices) for _, indices in loader) == 19
        assert loader.stats().skipped == (13,)


def names_in(samples: list[Any]) -> set[str]:
    return {name for _, name in samples}


def test_a_stand_in_is_of_the_same_source() -> None:
    mix = Mixture(
        {
            "bad": Source(datasets.Raises, {"n": 6, "bad": (4, 5)}, 1, collate_fn=names_in),
            "good": Source(datasets.Numbers, {"n": 6}, 1, collate_fn=names_in),
        },
        mix="batch",
        with_source=True,
    )
    options: dict[str, Any] = {"on_error": "skip", "num_workers": 0, "validate": False}
    with SwiftLoader(mix, batch_size=2, **options) as loader:
        assert list(loader) == [{"good"}, {"bad"}] * 3


def test_what_differs_from_the_state_is_said() -> None:
    with SwiftLoader(mixture_of(WEIGHTS), batch_size=4) as loader:
        next(iter(loader))
        state = loader.state_dict()
    changed = Mixture({"web": (Documents, {"n": 60, "source": 0}, 1)})
    with SwiftLoader(changed, batch_size=4) as loader:
        loader.load_state_dict(state)
        with pytest.warns(RuntimeWarning, match="source 'code' was taken out"):
            next(iter(loader))


def test_a_state_of_one_data_set_is_none_of_a_mixture() -> None:
    with SwiftLoader(datasets.Numbers, {"n": 92}, batch_size=4, seed=0) as loader:
        state = loader.state_dict()
    with SwiftLoader(mixture_of(WEIGHTS), batch_size=4) as loader:
        with pytest.raises(StateError, match="of one data set, and this is a mixture"):
            loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("sources", "options", "said"),
    [
        ({}, {}, "at least one"),
        ({"a": (Text, {"n": 3}, -1)}, {}, "weight=-1"),
        ({"a": (Text, {"n": 3}, 1), "b": (Text, {"n": 3})}, {}, "'b'"),
        ({"a": (Text, {"n": 3}, 1)}, {"exhausted": "begin"}, "exhausted='begin'"),
        ({"a": (Text, {"n": 3}, 1)}, {"weights": [(0, {"b": 1})]}, r"for each of \['a'\]"),
        ({"a": Source(Text, {"n": 3}, 1, batch_size=2)}, {}, "mix='batch'"),
        ({"a": (Mixture({"b": [1]}), 1)}, {}, "can't be a source"),
        ({"a": (Text, {"n": 3}, 1)}, {"exhausted": "drop", "samples_per_epoch": 3}, "leave it out"),
    ],
)
def test_a_mixture_that_can_not_be_says_why(sources: Any, options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Mixture(sources, **options)


def test_numbers_may_be_numpys() -> None:
    two = np.int64(2)
    sources = {"a": Source(range(8), batch_size=two, tokens=two)}
    mixing = Mixture(sources, mix="batch", samples_per_epoch=two).mixing
    numbers = (mixing.samples_per_epoch, mixing.batch_sizes, mixing.tokens)
    assert json.dumps(numbers) == "[2, [2], [2]]"


def test_a_stream_is_no_source() -> None:
    with pytest.raises(ConfigError, match=r"sources\['a'\].*a stream can't be one"):
        SwiftLoader(Mixture({"a": (partial(iter, [1]), {}, 1)}))


def test_options_that_do_not_go_with_a_mixture_are_refused() -> None:
    refused: tuple[dict[str, Any], ...] = (
        {"sampler": [1]},
        {"dataset_kwargs": {"a": 1}},
        {"batch_tokens": 9},
        {"batch_size": None},
    )
    for options in refused:
        with pytest.raises(ConfigError, match=next(iter(options))):
            SwiftLoader(mixture_of(WEIGHTS, mix="batch"), **options)
    assert set(LENGTHS) == set(mixture_of(WEIGHTS).mixing.names)
