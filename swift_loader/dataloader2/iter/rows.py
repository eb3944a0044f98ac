"""From streams of text to rows: lines, paragraphs, CSV, JSON, columns.

Every pipe here takes `(path, stream)` pairs as `open_files` yields them, and closes a stream once
it is read or the iteration is given up.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from torch.utils.data import IterDataPipe

from swift_loader.dataloader2.registry import functional_datapipe

__all__ = [
    "CSVDictParser",
    "CSVParser",
    "JsonParser",
    "LineReader",
    "ParagraphAggregator",
    "Rows2Columnar",
]

T = TypeVar("T")
_PathAndStream = tuple[str, Any]


class _TextPipe(IterDataPipe[Any]):
    """What the readers of text have in common: which lines they see, what they yield with them."""

    def __init__(
        self,
        source_datapipe: Iterable[_PathAndStream],
        *,
        skip_lines: int,
        decode: bool,
        encoding: str,
        errors: str,
        return_path: bool,
    ) -> None:
        if skip_lines < 0:
            raise ValueError(
                f"'skip_lines' is required to be a non-negative integer, got {skip_lines}"
            )
        self.source_datapipe = source_datapipe
        self.skip_lines = skip_lines
        self.decode = decode
        self.encoding = encoding
        self.errors = errors
        self.return_path = return_path

    def _lines(self, stream: Any) -> Iterator[Any]:
        lines = itertools.islice(stream, self.skip_lines, None)
        return map(self._decoded, lines) if self.decode else lines

    def _decoded(self, line: str | bytes) -> str:
        return line.decode(self.encoding, self.errors) if isinstance(line, bytes) else line

    def _rows(self, lines: Iterator[Any]) -> Iterator[Any]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        for path, stream in self.source_datapipe:
            with contextlib.closing(stream):
                for row in self._rows(self._lines(stream)):
                    yield (path, row) if self.return_path else row


def _without_newline(line: Any) -> Any:
    return line.rstrip("\r\n") if isinstance(line, str) else line.rstrip(b"\r\n")


@functional_datapipe("readlines")
class LineReader(_TextPipe):
    """Yields `(path, line)` for every line of every stream (`.readlines`).

    `skip_lines`: how many to leave out at the head of each stream. `strip_newline`: without the
    line's end. `decode`: turn bytes into text by `encoding` and `errors` (of `bytes.decode`); the
    default leaves the lines as the stream gives them. `return_path=False` yields the line alone.
    """

    def __init__(
        self,
        source_datapipe: Iterable[_PathAndStream],
        *,
        skip_lines: int = 0,
        strip_newline: bool = True,
        decode: bool = False,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = True,
    ) -> None:
        super().__init__(
            source_datapipe,
            skip_lines=skip_lines,
            decode=decode,
            encoding=encoding,
            errors=errors,
            return_path=return_path,
        )
        self.strip_newline = strip_newline

    def _rows(self, lines: Iterator[Any]) -> Iterator[Any]:
        return map(_without_newline, lines) if self.strip_newline else lines


@functional_datapipe("parse_csv")
class CSVParser(_TextPipe):
    """Yields the rows of CSV streams as lists of strings (`.parse_csv`).

    `as_tuple`: tuples instead of lists. `return_path`: `(path, row)`. `fmtparams` go to
    `csv.reader`; for `skip_lines`, `decode`, `encoding`, `errors` see `LineReader`.
    """

    def __init__(
        self,
        source_datapipe: Iterable[_PathAndStream],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        as_tuple: bool = False,
        **fmtparams: Any,
    ) -> None:
        super().__init__(
            source_datapipe,
            skip_lines=skip_lines,
            decode=decode,
            encoding=encoding,
            errors=errors,
            return_path=return_path,
        )
        self.as_tuple = as_tuple
        self.fmtparams = fmtparams

    def _rows(self, lines: Iterator[Any]) -> Iterator[Any]:
        rows = csv.reader(lines, **self.fmtparams)
        return map(tuple, rows) if self.as_tuple else rows


@functional_datapipe("parse_csv_as_dict")
class CSVDictParser(_TextPipe):
    """Yields the rows of CSV streams as dicts whose keys are in the first row of each stream.

    `.parse_csv_as_dict`. `fmtparams` go to `csv.DictReader`; for the rest see
    `CSVParser`.
    """

    def __init__(
        self,
        source_datapipe: Iterable[_PathAndStream],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        **fmtparams: Any,
    ) -> None:
        super().__init__(
            source_datapipe,
            skip_lines=skip_lines,
            decode=decode,
            encoding=encoding,
            errors=errors,
            return_path=return_path,
        )
        self.fmtparams = fmtparams

    def _rows(self, lines: Iterator[Any]) -> Iterator[Any]:
        return csv.DictReader(lines, **self.fmtparams)


@functional_datapipe("parse_json_data")
@functional_datapipe("parse_json_files")
class JsonParser(IterDataPipe[tuple[str, Any]]):
    """Yields `(path, object)` for every stream that holds one JSON document.

    Functional names `parse_json_files`, `parse_json_data`. `kwargs` go to `json.loads`.
    """

    def __init__(self, source_datapipe: Iterable[_PathAndStream], **kwargs: Any) -> None:
        self.source_datapipe = source_datapipe
        self.kwargs = kwargs

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for path, stream in self.source_datapipe:
            with contextlib.closing(stream):
                text = stream.read()
            yield path, json.loads(text, **self.kwargs)

    def __len__(self) -> int:
        return len(self.source_datapipe)  # type: ignore[arg-type]


def _join_lines(lines: list[str]) -> str:
    return "\n".join(lines)


@functional_datapipe("lines_to_paragraphs")
class ParagraphAggregator(IterDataPipe[tuple[str, Any]]):
    """Joins consecutive `(path, line)` pairs with the same path into one `(path, paragraph)`.

    `.lines_to_paragraphs`. `joiner` gets the list of lines; the default joins with
    newlines.
    """

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        joiner: Callable[[list[Any]], Any] = _join_lines,
    ) -> None:
        self.source_datapipe = source_datapipe
        self.joiner = joiner

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for path, pairs in itertools.groupby(self.source_datapipe, key=lambda pair: pair[0]):
            yield path, self.joiner([line for _, line in pairs])


@functional_datapipe("rows2columnar")
class Rows2Columnar(IterDataPipe[dict[Any, list[Any]]]):
    """Turns each batch of rows into one dict of columns (`.rows2columnar`).

    Rows that are dicts: the columns are their keys, or those in `column_names` (`KeyError` where a
    row lacks one). Rows that are lists: `column_names` names the fields in order, and must be
    given.
    """

    def __init__(
        self,
        source_datapipe: Iterable[list[dict[Any, Any] | list[Any]]],
        column_names: list[str] | None = None,
    ) -> None:
        self.source_datapipe = source_datapipe
        self.column_names = column_names

    def __iter__(self) -> Iterator[dict[Any, list[Any]]]:
        for rows in self.source_datapipe:
            columns: defaultdict[Any, list[Any]] = defaultdict(list)
            for row in rows:
                for name, value in self._fields(row):
                    columns[name].append(value)
            yield columns

    def _fields(self, row: dict[Any, Any] | list[Any]) -> Iterable[tuple[Any, Any]]:
        if isinstance(row, dict):
            return ((name, row[name]) for name in self.column_names or row)
        if self.column_names is None:
            raise ValueError("rows2columnar needs `column_names` where the rows are lists")
        return zip(self.column_names, row, strict=False)

    def __len__(self) -> int:
        return len(self.source_datapipe)  # type: ignore[arg-type]
