"""A great many small batches: nothing grows with their number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from swift_loader import SwiftLoader
from tests import datasets
from tests.process.test_memory import MIB, used_by_this_process

pytestmark = pytest.mark.usefixtures("nothing_left")

_BATCH_SIZE = 4
_EPOCH = 5_000  # batches


def soak(nb_batches: int, **options: Any) -> None:
    everything = torch.arange(_EPOCH * _BATCH_SIZE)
    with SwiftLoader(
        datasets.Indices,
        {"n": len(everything)},
        batch_size=_BATCH_SIZE,
        worker_per_consumer=2,
        shuffle=True,
        benchmark=False,
        **options,
    ) as loader:
        before: dict[str, int] = {}
        for epoch in range(nb_batches // _EPOCH):
            order = torch.cat([batch.clone() for batch in loader])
            assert not torch.equal(order, everything)
            assert torch.equal(order.sort().values, everything)
            if epoch == 0:
                assert all(worker.batches for worker in loader.stats().workers)
                del order
                before = used_by_this_process(loader)
        del order
        after = used_by_this_process(loader)
        assert loader.stats().batches == nb_batches
        assert loader.stats().restarts == 0
    for what in ("memory", "workers' memory"):
        assert after.pop(what) <= before.pop(what) + 8 * MIB, what
    assert after.pop("mapped") <= before.pop("mapped") + 2 * MIB
    for what, count in after.items():
        assert count <= before[what] + 20, (what, before, after)


@pytest.mark.timeout(300)
@pytest.mark.soak
def test_a_hundred_thousand_small_batches_leave_no_trace() -> None:
    soak(100_000)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("in_order", [True, False])
def test_two_million_small_batches_leave_no_trace(in_order: bool) -> None:
    soak(2_000_000, in_order=in_order)
