"""Where batches go: to a device, through a function of the user's, or on as they lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from swift_loader.batch.codec import decode_bytes
from swift_loader.errors import refuse
from swift_loader.pipeline.staging import pin_mapping
from swift_loader.transport.slots import OnMap

__all__ = ["Target", "checked_device"]


@dataclass(frozen=True)
class Target:
    """See the module's text; `hand_on` is told of each slot's region."""

    device: torch.device | None = None
    to_device: Callable[[Any, torch.device], Any] | None = None
    decoder: Callable[[bytes], Any] | None = None
    hand_on: OnMap | None = None

    @property
    def staged(self) -> bool:
        """Whether batches are moved ahead of the training loop."""
        on_device = self.device is not None and self.device.type != "cpu"
        return on_device or self.to_device is not None

    def decode_with(self) -> Callable[[bytes, NDArray[np.uint8]], Any] | None:
        """What takes the place of the built-in decoder."""
        if self.hand_on is not None:
            return _as_they_lie
        decoder = self.decoder
        if decoder is None:
            return None
        return lambda skeleton, base: decoder(bytes(decode_bytes(skeleton, base)))

    def on_map(self) -> OnMap | None:
        """What is told of every slot's mapping."""
        if self.hand_on is not None:
            return self.hand_on
        if self.device is not None and self.device.type == "cuda":
            return partial(pin_mapping, self.device)
        return None


def _as_they_lie(skeleton: bytes, base: NDArray[np.uint8]) -> Any:
    return skeleton, base


def checked_device(device: torch.device | str | None) -> torch.device | None:
    """The device of `start()`, with its index. Raises `ConfigError` where there is none such."""
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        refuse("device", device, "give a torch.device, or a string such as 'cuda:0'")
    if found.type != "cuda":
        return found
    count = torch.cuda.device_count()
    if not count:
        refuse("device", device, "torch finds no CUDA device in this process; see torch.cuda")
    index: int | None = found.index  # torch's types say that it is always there
    if index is None:  # the thread that copies has a current device of its own
        return torch.device("cuda", torch.cuda.current_device())
    if index >= count:
        refuse("device", device, f"there are {count} CUDA devices; see CUDA_VISIBLE_DEVICES")
    return found
