"""`pin_memory` of data pipes, and of the loader with RPCDataloader's names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from swift_loader import SwiftLoader
from swift_loader.dataloader2 import DataLoader2, MultiProcessingReadingService
from swift_loader.dataloader2.iter import IterableWrapper
from swift_loader.rpcdataloader.pinning import pinned

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("device", "nothing_left")]


def _row(item: int) -> torch.Tensor:
    return torch.full((1000,), item)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pipe_pins_what_it_yields(num_workers: int) -> None:
    pipe: Any = IterableWrapper(range(40)).sharding_filter().map(_row).pin_memory()
    service = MultiProcessingReadingService(num_workers=num_workers)
    with DataLoader2(pipe, reading_service=service) as loader:
        for _ in range(2):
            seen = []
            for row in loader:
                assert row.is_pinned()
                seen.append(int(row[0]))
            assert sorted(seen) == list(range(40))


def test_batches_are_pinned_where_no_device_is_given() -> None:
    rows = torch.utils.data.TensorDataset(torch.arange(40))
    with SwiftLoader(rows, batch_size=10, pin_memory=True) as loader:
        assert all(batch.is_pinned() for (batch,) in loader)


def test_nested_values_are_pinned() -> None:
    value = pinned({"a": [torch.ones(3)], "b": "text"})
    assert value["a"][0].is_pinned()
    assert value["b"] == "text"
