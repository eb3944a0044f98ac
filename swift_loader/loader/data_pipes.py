"""Data pipes that a loader is given: `shuffle` is a setting of the graph, as it is to torch."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["with_shuffle"]


def with_shuffle(dataset: Any, shuffle: bool | None) -> tuple[Any, bool]:
    """The data set, and whether the loader is to shuffle it.

    As torch's `DataLoader`: `shuffle` switches all shufflers of a graph of `IterDataPipe` on or
    off, in place. Where True finds none, it puts one at the end, with a warning. None, which is
    "not given", leaves the graph as it is.
    """
    kind = getattr(torch.utils.data, "IterDataPipe", None)  # a torch that has dropped them
    if kind is None or shuffle is None or not isinstance(dataset, kind):
        return dataset, bool(shuffle)
    from torch.utils.data import graph_settings

    return graph_settings.apply_shuffle_settings(dataset, shuffle=shuffle), False
