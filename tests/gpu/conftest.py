"""Tests that need a CUDA device: ``pytest tests/gpu``. Where there is none, each says so."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The first CUDA device, in use already, so that what it opens for good is open."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    first = torch.device("cuda", 0)
    torch.ones(1, device=first).sum().item()
    torch.cuda._sleep(1000)  # type: ignore[no-untyped-call]
    return first
