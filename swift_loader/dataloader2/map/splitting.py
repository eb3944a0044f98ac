"""One map-style pipe for each field of another's items."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from torch.utils.data import MapDataPipe

from swift_loader.dataloader2.registry import register_on

__all__ = ["UnZipper"]


def unzip(
    source_datapipe: MapDataPipe[Sequence[Any]],
    sequence_length: int,
    columns_to_skip: Sequence[int] | None = None,
) -> list[MapDataPipe[Any]]:
    """One pipe for each field of items that are sequences (`.unzip`).

    `sequence_length`: how many fields each item has; those in `columns_to_skip` (counted from 0)
    get no pipe. `ValueError` where no field is left, or a column to skip does not exist.
    """
    skipped = set(columns_to_skip or ())
    columns = [i for i in range(sequence_length) if i not in skipped]
    if not columns or not skipped <= set(range(sequence_length)):
        raise ValueError(
            f"unzip has no field left, or skips unknown ones: {sequence_length} fields, "
            f"skipping {sorted(skipped)}"
        )
    pipe: Any = source_datapipe
    return [pipe.map(itemgetter(i)) for i in columns]


UnZipper = unzip
register_on(MapDataPipe, "unzip", unzip)
