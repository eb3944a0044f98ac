"""Batches at the same addresses each time: ``device_buffers="static"``.

A captured CUDA graph reads its input where that lay when the graph was captured ("CUDA Graphs" in
PyTorch's notes on CUDA semantics). So each batch is copied, on the loop's own stream, into the
tensors of the first one. Staging goes on as before: the copy reads what lies on the device already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from swift_loader.batch.tree import map_leaves
from swift_loader.errors import BatchError

__all__ = ["StaticBuffers"]


class StaticBuffers:
    """The tensors that every batch is copied into, made as the first batch comes."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] | None = None

    def filled(self, batch: Any) -> Any:
        """`batch` with its tensors in the buffers; what is no tensor stays as it is.

        Raises `BatchError` where a tensor is not dense, or has another shape, dtype or device than
        in the first batch, or there are more of them or fewer.
        """
        if self._buffers is None:
            made: list[torch.Tensor] = []
            filled = map_leaves(lambda leaf: _added(leaf, made), batch)
            self._buffers = made  # only now: a batch that was refused has made none
            return filled
        left = iter(self._buffers)
        filled = map_leaves(lambda leaf: _copied(leaf, left), batch)
        if next(left, None) is not None:
            raise _other("fewer tensors than the first one")
        return filled


def _added(leaf: Any, made: list[torch.Tensor]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.layout is not torch.strided or leaf.is_nested:
        raise _other(f"a tensor with the layout {leaf.layout}; static ones are dense")
    buffer = torch.empty_like(leaf, memory_format=torch.contiguous_format)
    made.append(buffer)
    return buffer.copy_(leaf, non_blocking=True)


def _copied(leaf: Any, left: Iterator[torch.Tensor]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    buffer = next(left, None)
    if buffer is None:
        raise _other("more tensors than the first one")
    if (leaf.shape, leaf.dtype, leaf.device) != (buffer.shape, buffer.dtype, buffer.device):
        raise _other(
            f"{leaf.dtype} of shape {tuple(leaf.shape)} on {leaf.device} where the first one has "
            f"{buffer.dtype} of shape {tuple(buffer.shape)} on {buffer.device}"
        )
    return buffer.copy_(leaf, non_blocking=True)


def _other(what: str) -> BatchError:
    return BatchError(
        f'device_buffers="static": the batch has {what}. Give batches of one shape (tail="drop" or '
        'tail="pad" for the last one of an epoch), or device_buffers="fresh"'
    )
