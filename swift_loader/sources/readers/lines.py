"""JSON Lines: a file is a shard, a line is an item."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from swift_loader.sources.readers.addresses import found, opened
from swift_loader.sources.shards import Shards

__all__ = ["json_lines"]


def json_lines(addresses: str | Iterable[str], *, buffer: int = 0) -> Shards:
    """The values of JSON Lines files, compressed or not (``.gz``, ``.zst`` and what fsspec knows).

    Empty lines are left out. Lines before the one to go on with are read, and not parsed.

    Parameters
    ----------
    addresses:
        By fsspec; ``*`` stands for many.
    buffer:
        As `Shards` has it.

    Raises
    ------
    ConfigError
        No file matches.
    """
    return Shards(found(addresses), _values, buffer=buffer)


def _values(address: str, start: int = 0) -> Iterator[Any]:
    number = 0
    with opened(address) as file:
        for line in file:
            if not line.strip():
                continue
            if number >= start:
                yield json.loads(line)
            number += 1
