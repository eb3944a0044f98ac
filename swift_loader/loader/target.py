"""Where batches go: to a device, through a function of the user's, or on as they lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from swift_loader.batch.codec import decode_bytes
from swift_loader.errors import refuse
from swift_loader.loader.meshes import cutter
from swift_loader.loader.options import Config
from swift_loader.pipeline.staging import move, pin_mapping
from swift_loader.ranks.mesh import ContextSlice
from swift_loader.transport.slots import OnMap

__all__ = ["Target"]


@dataclass(frozen=True)
class Target:
    """See the module's text.

    `hand_on` is told of each slot's region; `pinned_for` is the device for which it is page-locked.
    `cut` takes this rank's part of a batch that is not moved.
    """

    device: torch.device | None = None
    to_device: Callable[[Any, torch.device], Any] | None = None
    decoder: Callable[[bytes], Any] | None = None
    hand_on: OnMap | None = None
    pinned_for: torch.device | None = None
    cut: Callable[[Any], Any] | None = None

    @classmethod
    def of(
        cls,
        config: Config,
        device: torch.device | str | None,
        to_device: Callable[[Any, torch.device], Any] | None,
        hand_on: OnMap | None,
        context_slice: ContextSlice | None = None,
    ) -> Target:
        """What `start()` was given, and what the options say. Raises `ConfigError`."""
        moved_to = _checked_device(device)
        pinned_for = moved_to if moved_to is not None and moved_to.type == "cuda" else None
        if config.pin_memory and pinned_for is None and torch.cuda.is_available():
            pinned_for = _checked_device(config.pin_memory_device or "cuda")
        cut = cutter(context_slice)
        target = cls(moved_to, to_device, config.batch_decoder, hand_on, pinned_for, cut)
        if cut is None or not target.staged:
            return target
        # Only its part of a batch is moved.
        onward = to_device or move
        return replace(target, to_device=lambda batch, to: onward(cut(batch), to), cut=None)

    @property
    def staged(self) -> bool:
        """Whether batches are moved ahead of the training loop."""
        on_device = self.device is not None and self.device.type != "cpu"
        return on_device or self.to_device is not None

    @property
    def finish(self) -> Callable[[Any], Any] | None:
        """What moves a batch, where nothing moves batches ahead."""
        if not self.staged:
            return None
        device = self.device or torch.device("cpu")
        if self.to_device is not None:
            return lambda batch: self.to_device(batch, device)  # type: ignore[misc]
        return lambda batch: move(batch, device)

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
        return None if self.pinned_for is None else partial(pin_mapping, self.pinned_for)


def _as_they_lie(skeleton: bytes, base: NDArray[np.uint8]) -> Any:
    return skeleton, base


def _check_there(device: torch.device) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        refuse("device", str(device), f"torch can't use it here: {str(error).splitlines()[0]:.100}")


def _checked_device(device: torch.device | str | None) -> torch.device | None:
    """The device of `start()`, with its index. Raises `ConfigError` where there is none such."""
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        refuse("device", device, "give a torch.device, or a string such as 'cuda:0'")
    if found.type != "cuda":
        _check_there(found)
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
