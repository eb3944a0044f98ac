"""Parquet and Arrow files, by pyarrow: a row group, or a record batch, is a shard that can seek."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from swift_loader.errors import ConfigError
from swift_loader.sources.readers.addresses import found, opened
from swift_loader.sources.shards import Shards

__all__ = ["arrow", "parquet"]

_ROWS = 1024  # turned into Python's objects together


def parquet(
    addresses: str | Iterable[str], columns: Sequence[str] | None = None, *, buffer: int = 0
) -> Shards:
    """The rows of Parquet files, each a dict by column.

    Every row group is a shard, and is read by itself. The files' footers are read here, to count
    them.

    Parameters
    ----------
    addresses:
        By fsspec; ``*`` stands for many.
    columns:
        Those to be read; None: all.
    buffer:
        As `Shards` has it.

    Raises
    ------
    ConfigError
        Pyarrow is not there, or no file matches.
    """
    pq = _pyarrow("parquet")
    shards = []
    for address in found(addresses):
        with opened(address, None) as file:
            count = pq.ParquetFile(file).num_row_groups
        shards += [(address, group) for group in range(count)]
    return Shards(shards, _RowGroups(columns), buffer=buffer)


def arrow(
    addresses: str | Iterable[str], columns: Sequence[str] | None = None, *, buffer: int = 0
) -> Shards:
    """The rows of Arrow IPC files, each a dict by column; every record batch is a shard.

    Parameters
    ----------
    addresses:
        By fsspec; ``*`` stands for many.
    columns:
        Those to be read; None: all.
    buffer:
        As `Shards` has it.

    Raises
    ------
    ConfigError
        Pyarrow is not there, or no file matches.
    """
    ipc = _pyarrow("ipc")
    shards = []
    for address in found(addresses):
        with opened(address, None) as file, ipc.open_file(file) as reader:
            shards += [(address, batch) for batch in range(reader.num_record_batches)]
    return Shards(shards, _RecordBatches(columns), buffer=buffer)


class _RowGroups:
    """Opens ``(address, row group)``."""

    def __init__(self, columns: Sequence[str] | None) -> None:
        self.columns = None if columns is None else list(columns)

    def __call__(self, shard: tuple[str, int], start: int = 0) -> Iterator[dict[str, Any]]:
        address, group = shard
        with opened(address, None) as file:
            table = _pyarrow("parquet").ParquetFile(file).read_row_group(group, self.columns)
        yield from _rows(table, start)


class _RecordBatches:
    """Opens ``(address, record batch)``."""

    def __init__(self, columns: Sequence[str] | None) -> None:
        self.columns = None if columns is None else list(columns)

    def __call__(self, shard: tuple[str, int], start: int = 0) -> Iterator[dict[str, Any]]:
        address, number = shard
        with opened(address, None) as file, _pyarrow("ipc").open_file(file) as reader:
            batch = reader.get_batch(number)
        yield from _rows(batch if self.columns is None else batch.select(self.columns), start)


def _rows(table: Any, start: int) -> Iterator[dict[str, Any]]:
    for first in range(start, table.num_rows, _ROWS):
        yield from table.slice(first, _ROWS).to_pylist()


def _pyarrow(name: str) -> Any:
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            "Parquet and Arrow files need pyarrow: pip install 'swift-loader[readers]'"
        ) from error
    return getattr(pyarrow, name)
