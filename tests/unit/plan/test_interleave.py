"""Sources interleaved by weight: counts by a formula, and shares that are right everywhere."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_loader.plan.interleave import ONE, Interleaver, Shares

weights_lists = st.lists(
    st.floats(1e-6, 1e6, allow_nan=False) | st.just(0.0), min_size=1, max_size=12
).filter(any)
FAR = 10**12


def sources_at(tree: Interleaver, shares: Shares, first: int, last: int) -> list[int]:
    found = np.full(last - first, -1)
    for source, _, where in tree.split(shares, first, last):
        assert (found[where] == -1).all()
        found[where] = source
    return found.tolist()


@given(weights_lists, st.integers(0, FAR), st.integers(1, 300))
@settings(max_examples=60)
def test_counts_are_those_of_the_positions(weights: list[float], first: int, length: int) -> None:
    tree = Interleaver(weights)
    shares = tree.shares(weights, [0] * len(weights))
    before, after = tree.counts(shares, first), tree.counts(shares, first + length)
    sources = sources_at(tree, shares, first, first + length)
    assert -1 not in sources
    for source, weight in enumerate(weights):
        assert after[source] - before[source] == sources.count(source)
        assert weight or source not in sources
    assert sum(before) == first
    for source, known, where in tree.split(shares, first, first + length):
        assert known == before[source]
        assert (np.diff(where) > 0).all()


@given(weights_lists, st.integers(0, FAR))
@settings(max_examples=60)
def test_every_stretch_of_a_thousand_has_its_shares(weights: list[float], first: int) -> None:
    tree = Interleaver(weights)
    sources = np.array(
        sources_at(tree, tree.shares(weights, [0] * len(weights)), first, first + 3000)
    )
    for source, weight in enumerate(weights):
        counts = np.cumsum(np.concatenate([[0], sources == source]))
        owed = 1000 * weight / sum(weights)
        assert np.abs(counts[1000:] - counts[:-1000] - owed).max() < 3


@given(st.data(), st.lists(st.integers(1, 40), min_size=20, max_size=60))
@settings(max_examples=40)
def test_a_rare_source_comes_however_often_weights_change(
    data: st.DataObject, lengths: list[int]
) -> None:
    tree = Interleaver([0.989, 0.01, 0.001])
    weights = [0.989, 0.01, 0.001]
    shares = tree.shares(weights, [0, 0, 0])
    owed, had = [0.0] * 3, [0] * 3
    for length in lengths:
        counts = tree.counts(shares, length)
        for source in range(3):
            had[source] += counts[source]
            owed[source] += length * weights[source] / sum(weights)
        extra = data.draw(st.floats(0, 0.005))
        weights = [0.989, 0.01 + extra, 0.001]
        shares = tree.goes_on(shares, length, [0.989, 0.01 + extra, 0.001])
    assert all(abs(a - b) < 2 for a, b in zip(owed, had, strict=True))


def test_shares_are_the_same_on_every_machine() -> None:
    tree = Interleaver([0.5, 0.3, 0.15, 0.05])
    shares = tree.shares([0.5, 0.3, 0.15, 0.05], [0, 0, 0, 0])
    assert sources_at(tree, shares, 0, 20) == PINNED
    assert shares.phases == (ONE // 2,) * 3


PINNED = [1, 0, 2, 0, 1, 0, 2, 0, 1, 0, 1, 0, 3, 0, 1, 0, 2, 0, 1, 0]
