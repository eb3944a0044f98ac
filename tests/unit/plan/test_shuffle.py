"""The order of an epoch, without anybody to deal it out to."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from swift_loader.plan.keys import key64
from swift_loader.plan.shuffle import bijection, shuffled

SEEDS = st.integers(0, 2**64 - 1)
EPOCHS = st.integers(0, 10**6)


def order(n: int, window: int, seed: int = 0, epoch: int = 0) -> NDArray[np.int64]:
    return shuffled(0, n, nb_samples=n, window=window, seed=seed, epoch=epoch)


@given(st.integers(1, 12_000), st.integers(0, 15_000), SEEDS, EPOCHS)
def test_every_index_comes_once(n: int, window: int, seed: int, epoch: int) -> None:
    indices = order(n, window, seed, epoch)
    assert indices.dtype == np.int64
    assert np.array_equal(np.sort(indices), np.arange(n))


def test_every_index_comes_once_in_all_small_datasets() -> None:
    for n in (*range(1, 20), *range(126, 400, 3)):
        for window in (1, *range(127, n + 2, 13)):
            assert np.array_equal(np.sort(order(n, window, epoch=n)), np.arange(n))


@pytest.mark.parametrize(
    ("n", "window"), [(3_000, 128), (20_011, 2_000), (50_000, 8192), (300_000, 100_000)]
)
def test_neighbours_come_at_about_the_same_time(n: int, window: int) -> None:
    run = math.isqrt(window // 32)
    indices = order(n, window)
    rotation = int(rotation_of(n))
    comes_at = np.empty(n, np.int64)
    comes_at[(indices - rotation) % n] = np.arange(n)
    runs = comes_at[: n - n % run].reshape(-1, run)
    under_way = runs.max(axis=1) - runs.min(axis=1)
    assert (under_way > 1.5 * window).sum() <= n % run  # of the scattered rest, one in each
    # A run is read upwards from one of its samples, and round its end.
    turns = (np.diff(runs, axis=1) < 0).sum(axis=1)
    assert (turns > 1).sum() <= 2 * (n % run)
    assert (turns == 1).mean() > 0.8 * (1 - 1 / run)


def rotation_of(n: int, seed: int = 0, epoch: int = 0) -> int:
    return (key64(1, seed, epoch) * n) >> 64


@pytest.mark.parametrize(
    ("nb_classes", "samples_each", "batch_size"),
    [
        (10, 1_000, 32),
        (10, 100, 20),
        (10, 10**6, 32),
        (100, 600, 64),
        (1_000, 1_281, 256),
        (1_000, 1_281, 1_024),
        (21_841, 600, 128),
        (100_000, 12, 256),
    ],
)
def test_batches_of_data_sorted_by_class_hold_as_many_classes_as_those_of_a_full_shuffle(
    nb_classes: int, samples_each: int, batch_size: int
) -> None:
    n = nb_classes * samples_each
    window = max(8192, 64 * batch_size)  # the default of `SwiftLoader`

    def classes(window: int) -> float:
        counts = []
        for k in range(0, n // batch_size, max(1, n // batch_size // 100)):
            batch = shuffled(
                k * batch_size, (k + 1) * batch_size, nb_samples=n, window=window, seed=3, epoch=1
            )
            counts.append(len(set((batch // samples_each).tolist())))
        return sum(counts) / len(counts)

    assert classes(window) > 0.94 * classes(0)


@given(
    st.integers(1, 10**12),
    st.sampled_from([0, 1, 7, 200, 1280, 8192, 2 * 10**6, 10**8]),
    st.data(),
)
def test_any_part_of_the_order_can_be_asked_for_alone(
    n: int, window: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, n - 1))
    last = data.draw(st.integers(first + 1, min(n, first + 3_000)))
    middle = data.draw(st.integers(first, last))

    def part(start: int, stop: int) -> list[int]:
        if start == stop:
            return []
        return list(map(int, shuffled(start, stop, nb_samples=n, window=window, seed=5, epoch=2)))

    whole = part(first, last)
    assert whole == part(first, middle) + part(middle, last)
    assert len(set(whole)) == last - first
    assert min(whole) >= 0
    assert max(whole) < n


@given(st.integers(1, 5_000), SEEDS)
def test_bijection_of_any_size(size: int, key: int) -> None:
    sent = bijection(np.arange(size, dtype=np.uint64), size, key)
    assert np.array_equal(np.sort(sent), np.arange(size, dtype=np.uint64))


@pytest.mark.parametrize("size", range(1, 70))
def test_bijection_of_tiny_sizes(size: int) -> None:
    for key in range(20):
        sent = bijection(np.arange(size, dtype=np.uint64), size, key64(key))
        assert sorted(sent.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [10**9, 10**12, 2**40, 2**40 + 1, 2**62 - 1, 2**62])
def test_bijection_of_huge_sizes_has_no_collision(size: int) -> None:
    places = np.arange(size - 200_000, size, dtype=np.uint64)
    sent = bijection(places, size, 1)
    assert len(np.unique(sent)) == len(places)
    assert int(sent.max()) < size


GOLDEN = {
    0: [754105476, 92706902, 552566360, 475968347],
    100: [754105476, 92706902, 552566360, 475968347],  # the same: too few for runs
    8192: [248692528, 290165652, 937287904, 902570244],
    2_000_000: [524621634, 320778743, 324372694, 558242885],
}


@pytest.mark.parametrize("window", GOLDEN)
def test_the_order_stays_the_same_over_releases(window: int) -> None:
    # Saved runs go on in this order: changing these numbers breaks them.
    found = shuffled(123_456, 123_460, nb_samples=10**9, window=window, seed=7, epoch=3)
    assert found.tolist() == GOLDEN[window]


def chi_square(counts: NDArray[np.float64]) -> float:
    """In standard deviations from what equally likely outcomes give."""
    expected = counts.mean()
    degrees = counts.size - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - degrees) / math.sqrt(2 * degrees)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_orders_of_a_tiny_dataset_are_equally_likely(n: int) -> None:
    seen = Counter(tuple(order(n, 0, epoch=epoch).tolist()) for epoch in range(6_000))
    counts = np.array([seen[each] for each in permutations(range(n))], dtype=np.float64)
    assert chi_square(counts) < 5


@pytest.mark.parametrize("n", [60, 4_000, 6_000, 10**12])
def test_each_position_gets_any_index(n: int) -> None:
    drawn = np.array(
        [
            shuffled(0, 60, nb_samples=n, window=0, seed=seed, epoch=1).astype(np.float64)
            for seed in range(1_000)
        ]
    )
    bins = (drawn * 20 // n).astype(np.int64)
    counts = np.array([np.bincount(column, minlength=20) for column in bins.T])
    assert chi_square(counts.ravel()) < 5


@pytest.mark.parametrize("n", [3_000, 6_000, 10**6, 10**12])
def test_neighbours_of_a_full_shuffle_are_unrelated(n: int) -> None:
    found = shuffled(0, min(n, 50_000), nb_samples=n, window=0, seed=3, epoch=0)
    steps = np.diff(found) % n
    assert chi_square(np.bincount((steps * 50 // n), minlength=50).astype(np.float64)) < 5


@pytest.mark.parametrize("window", [1280, 8192, 50_000])
def test_runs_are_shuffled_well(window: int) -> None:
    n, run = 40 * window, math.isqrt(window // 32)
    whole = n // run * run
    of_runs = ((order(n, window, seed=3) - rotation_of(n, seed=3)) % n // run)[:whole]
    first_group = of_runs[: window // run].astype(np.float64)
    assert abs(first_group.mean() / (n / run) - 0.5) < 0.15  # from all over the dataset
    # One sample of each run of a group, before the second one of any.
    runs_of_a_group = window // run
    for start in (0, whole // 2, whole - runs_of_a_group // 2):
        some = of_runs[start : start + runs_of_a_group // 2]
        assert len(set(some.tolist())) > 0.74 * len(some)
    rising = (np.diff(of_runs) > 0).mean()
    assert abs(rising - 0.5) < 0.02


@pytest.mark.parametrize("window", [0, 40, 8192, 10**8])
def test_a_trillion_samples_need_little_memory(window: int) -> None:
    tracemalloc.start()
    try:
        for first in range(0, 10**12, 10**12 // 50):
            shuffled(first, first + 256, nb_samples=10**12, window=window, seed=1, epoch=0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2_000_000


def test_the_caller_may_write_to_what_it_gets() -> None:
    def part() -> NDArray[np.int64]:
        return shuffled(0, 10, nb_samples=10**6, window=400, seed=1, epoch=0)

    kept = part().tolist()
    part()[:] = -1
    assert part().tolist() == kept


def test_keys_differ_in_every_value_and_its_place() -> None:
    keys = {
        key64(purpose, a, b, c)
        for purpose in range(2)
        for a in range(20)
        for b in range(20)
        for c in range(20)
    }
    assert len(keys) == 2 * 20**3
    assert all(0 <= key < 2**64 for key in keys)
    bits = np.array([[key >> bit & 1 for bit in range(64)] for key in keys])
    assert abs(bits.mean(axis=0) - 0.5).max() < 0.03
