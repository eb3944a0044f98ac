"""Parquet and Arrow files, by pyarrow: a row group, or a record batch, is a shard that can seek.

A file in Arrow's stream format is one shard: nothing in it tells where its record batches begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from swift_loader.errors import ConfigError, refuse
from swift_loader.sources.readers.addresses import found, opened
from swift_loader.sources.shards import Shards

__all__ = ["arrow", "parquet"]

_MAGIC = b"ARROW1"  # a file of Arrow begins with it, a stream does not
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

    A file in the stream format, as `datasets` writes it, is one shard: a resumed run reads its
    record batches up to where it was, and makes no rows of them.

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
        Pyarrow is not there, no file matches, or one is no Arrow file.
    """
    shards = [
        (address, batch) for address in found(addresses) for batch in _record_batches(address)
    ]
    return Shards(shards, _RecordBatches(columns), buffer=buffer)


def _record_batches(address: str) -> Iterable[int | None]:
    """Their numbers in a file; None stands for all those of a stream."""
    ipc = _pyarrow("ipc")
    with opened(address, None) as file:
        is_file = file.read(len(_MAGIC)) == _MAGIC
        file.seek(0)
        try:
            if is_file:
                with ipc.open_file(file) as reader:
                    return range(reader.num_record_batches)
            with ipc.open_stream(file):
                return (None,)
        except (ValueError, OSError) as error:  # ArrowInvalid is a ValueError
            refuse("addresses", address, f"it is neither a file nor a stream of Arrow: {error}")


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
    """Opens ``(address, record batch)``, or ``(address, None)``, a stream."""

    def __init__(self, columns: Sequence[str] | None) -> None:
        self.columns = None if columns is None else list(columns)

    def __call__(self, shard: tuple[str, int | None], start: int = 0) -> Iterator[dict[str, Any]]:
        address, number = shard
        if number is None:
            yield from self._rows_of_stream(address, start)
            return
        with opened(address, None) as file, _pyarrow("ipc").open_file(file) as reader:
            batch = reader.get_batch(number)
        yield from _rows(self._chosen(batch), start)

    def _rows_of_stream(self, address: str, start: int) -> Iterator[dict[str, Any]]:
        with opened(address, None) as file, _pyarrow("ipc").open_stream(file) as reader:
            for batch in reader:
                yield from _rows(self._chosen(batch), start)
                start = max(0, start - batch.num_rows)

    def _chosen(self, batch: Any) -> Any:
        return batch if self.columns is None else batch.select(self.columns)


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
