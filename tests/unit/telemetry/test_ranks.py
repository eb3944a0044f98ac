"""Ranks beside each other: who makes the others wait."""

from __future__ import annotations

import pytest

from swift_loader.telemetry.metrics import BatchTimes, Meter
from swift_loader.telemetry.ranks import RanksStats


def stats_of(consumer: int, wait_share: float):
    meter = Meter(consumer)
    meter.worker_started(0, None)
    meter.epoch_begins(0, 0.0)
    for k in range(20):
        meter.add(
            BatchTimes(0, 0, k, 32, 1000, 0.9, 0.0, 0.0, 0.0, 0.0, wait_share, 0, float(k + 1))
        )
    return meter.snapshot()


@pytest.mark.parametrize(
    ("shares", "slow", "says"),
    [
        ([0.01, 0.02, 0.31, 0.02], 2, "Rank 2 makes the others wait: it waited for data 31%"),
        ([0.2, 0.25], None, "All ranks wait for data alike: 20% to 25%"),
        ([0.01, 0.04], None, "No rank waits for data for long: 4.0% of its time at most (rank 1)"),
        (
            [0.6, 0.62, 0.64, 0.01, 0.02, 0.6],  # more than half of them
            2,
            "Ranks 0 to 2 and 5 make the others wait: they waited for data 60% to 64%",
        ),
        ([0.2, 0.26, 0.31, 0.4], None, "All ranks wait for data alike: 20% to 40%"),
        ([0.5], None, "All ranks wait for data alike: 50% to 50%"),
    ],
)
def test_the_rank_that_waits_more_than_the_others_is_named(shares, slow, says) -> None:
    ranks = RanksStats(tuple(stats_of(rank, share) for rank, share in enumerate(shares)))
    assert ranks.slow_rank == slow
    assert ranks.verdict.startswith(says)
    assert ranks.verdict in repr(ranks)
    assert repr(ranks).count("\n") == 2 + len(shares)
    assert ranks.as_dict()["slow_rank"] == slow
