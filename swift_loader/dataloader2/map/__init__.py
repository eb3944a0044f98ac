"""Map-style pipes: torch's own, and those that torch never had. See the package `iter`."""

from __future__ import annotations

from torch.utils.data import MapDataPipe
from torch.utils.data.datapipes.map import (
    Batcher,
    Concater,
    Mapper,
    SequenceWrapper,
    Shuffler,
    Zipper,
)

from swift_loader.dataloader2.map.caching import InMemoryCacheHolder
from swift_loader.dataloader2.map.converting import IterToMapConverter
from swift_loader.dataloader2.map.splitting import UnZipper

__all__ = [
    "Batcher",
    "Concater",
    "InMemoryCacheHolder",
    "IterToMapConverter",
    "MapDataPipe",
    "Mapper",
    "SequenceWrapper",
    "Shuffler",
    "UnZipper",
    "Zipper",
]
