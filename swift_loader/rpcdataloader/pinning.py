"""Pinned memory, where there is a device that it is for."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data._utils import pin_memory

__all__ = ["pinned"]


def pinned(value: Any) -> Any:
    """`value` with its tensors in pinned memory, as torch's own loader does it."""
    if not torch.cuda.is_available():
        return value
    return pin_memory.pin_memory(value)  # type: ignore[no-untyped-call]
