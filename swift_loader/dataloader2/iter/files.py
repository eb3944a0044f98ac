"""Files by name: on any file system that fsspec knows, written to disk, checked by hash.

fsspec (`pip install fsspec`, with what it needs for the file system in question) is asked for when
a pipe that uses it is made, not before.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from types import ModuleType
from typing import Any

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.utils.common import StreamWrapper, match_masks

from swift_loader.dataloader2.registry import functional_datapipe

__all__ = [
    "FSSpecFileLister",
    "FSSpecFileOpener",
    "FSSpecSaver",
    "HashChecker",
    "Saver",
    "ShardExpander",
]


def _fsspec() -> ModuleType:
    try:
        module = importlib.import_module("fsspec")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "This pipe needs the package fsspec: `pip install fsspec`."
        ) from error
    return module


@functional_datapipe("list_files_by_fsspec")
class FSSpecFileLister(IterDataPipe[str]):
    """Yields the names of the files in one or more folders, by fsspec (`.list_files_by_fsspec`).

    `root`: a folder (or file), several, or a pipe of them, as fsspec writes them (`s3://bucket/x`).
    `masks`: only names that match one of these patterns (of `fnmatch`). `kwargs` go to the file
    system. Names come sorted, with the protocol where the root had one. `FileNotFoundError` for a
    root that is not there.
    """

    def __init__(
        self,
        root: str | Sequence[str] | IterDataPipe[str],
        masks: str | list[str] = "",
        **kwargs: Any,
    ) -> None:
        _fsspec()
        self.datapipe: Iterable[str] = [root] if isinstance(root, str) else root
        self.masks = masks
        self.kwargs_for_connection = kwargs

    def __iter__(self) -> Iterator[str]:
        for root in self.datapipe:
            file_system, path = _fsspec().core.url_to_fs(root, **self.kwargs_for_connection)
            if file_system.isfile(path):
                yield root
                continue
            for name in sorted(file_system.ls(path, detail=False)):
                if match_masks(os.path.basename(name), self.masks):
                    yield file_system.unstrip_protocol(name) if "://" in root else name


@functional_datapipe("open_files_by_fsspec")
class FSSpecFileOpener(IterDataPipe[tuple[str, StreamWrapper]]):
    """Opens files by fsspec and yields `(name, stream)` (`.open_files_by_fsspec`).

    `mode` and `kwargs_for_open` go to the file system's `open`, `kwargs` to the file system.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[str],
        mode: str = "r",
        *,
        kwargs_for_open: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        _fsspec()
        self.source_datapipe = source_datapipe
        self.mode = mode
        self.kwargs_for_open = kwargs_for_open or {}
        self.kwargs_for_connection = kwargs

    def __iter__(self) -> Iterator[tuple[str, StreamWrapper]]:
        for name in self.source_datapipe:
            file_system, path = _fsspec().core.url_to_fs(name, **self.kwargs_for_connection)
            yield name, StreamWrapper(file_system.open(path, self.mode, **self.kwargs_for_open))

    def __len__(self) -> int:
        return len(self.source_datapipe)


_Writable = bytes | bytearray | str


@functional_datapipe("save_by_fsspec")
class FSSpecSaver(IterDataPipe[str]):
    """Writes the data of each `(name, data)` by fsspec and yields where (`.save_by_fsspec`).

    `filepath_fn` makes the path from the name, which by default is the path. `mode`,
    `kwargs_for_open`, `kwargs` as of `open_files_by_fsspec`.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[Any, _Writable]],
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        kwargs_for_open: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        _fsspec()
        self.source_datapipe = source_datapipe
        self.mode = mode
        self.filepath_fn = filepath_fn
        self.kwargs_for_open = kwargs_for_open or {}
        self.kwargs_for_connection = kwargs

    def __iter__(self) -> Iterator[str]:
        for name, data in self.source_datapipe:
            target = name if self.filepath_fn is None else self.filepath_fn(name)
            file_system, path = _fsspec().core.url_to_fs(target, **self.kwargs_for_connection)
            with file_system.open(path, self.mode, **self.kwargs_for_open) as file:
                file.write(data)
            yield target

    def __len__(self) -> int:
        return len(self.source_datapipe)


@functional_datapipe("save_to_disk")
class Saver(IterDataPipe[str]):
    """Writes the data of each `(name, data)` to a file and yields its path (`.save_to_disk`).

    `filepath_fn` makes the path from the name, which by default is the path; missing folders are
    made. `mode` is that of `open`: `"wb"` for bytes.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[Any, _Writable]],
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
    ) -> None:
        self.source_datapipe = source_datapipe
        self.mode = mode
        self.filepath_fn = filepath_fn

    def __iter__(self) -> Iterator[str]:
        for name, data in self.source_datapipe:
            path = name if self.filepath_fn is None else self.filepath_fn(name)
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, self.mode) as file:
                file.write(data)
            yield path

    def __len__(self) -> int:
        return len(self.source_datapipe)


@functional_datapipe("check_hash")
class HashChecker(IterDataPipe[tuple[str, Any]]):
    """Passes on `(name, data or stream)` whose hash is the expected one (`.check_hash`).

    `hash_dict`: name -> hexadecimal digest, `hash_type` `"sha256"` or `"md5"`. A stream is read to
    its end, then put back to its start if `rewind` (which it must support). `RuntimeError` for
    another digest or for a name that is not in `hash_dict`.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[str, Any]],
        hash_dict: dict[str, str],
        hash_type: str = "sha256",
        rewind: bool = True,
    ) -> None:
        if hash_type not in ("sha256", "md5"):
            raise ValueError(f"Invalid hash_type {hash_type!r}, should be 'sha256' or 'md5'")
        self.source_datapipe = source_datapipe
        self.hash_dict = hash_dict
        self.hash_type = hash_type
        self.rewind = rewind

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for name, content in self.source_datapipe:
            if name not in self.hash_dict:
                raise RuntimeError(f"Unspecified hash for file {name}")
            digest = hashlib.new(self.hash_type)
            if isinstance(content, (str, bytes, bytearray)):
                digest.update(_as_bytes(content))
            else:
                while chunk := content.read(2**20):
                    digest.update(_as_bytes(chunk))
                if self.rewind:
                    content.seek(0)
            if digest.hexdigest() != self.hash_dict[name]:
                raise RuntimeError(
                    f"{name} has the {self.hash_type} hash {digest.hexdigest()}, expected "
                    f"{self.hash_dict[name]}. Get the file again, or correct the hash."
                )
            yield name, content

    def __len__(self) -> int:
        return len(self.source_datapipe)


def _as_bytes(text: str | bytes | bytearray) -> bytes | bytearray:
    return text.encode() if isinstance(text, str) else text


_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@functional_datapipe("shard_expand")
class ShardExpander(IterDataPipe[str]):
    """Yields the names that ranges in a name stand for (`.shard_expand`).

    `ds-{000..003}.tar` gives `ds-000.tar` to `ds-003.tar`; the width is that of the first number.
    Several ranges give all combinations. `ValueError` for a range that goes down, or that
    is padded to another width than its end has (`{01..999}`).
    """

    def __init__(self, source_datapipe: IterDataPipe[str]) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Iterator[str]:
        for name in self.source_datapipe:
            fixed = _RANGE.split(name)[::3]
            ranges = [_numbers(name, *match.groups()) for match in _RANGE.finditer(name)]
            for numbers in product(*ranges):
                yield fixed[0] + "".join(map(str.__add__, numbers, fixed[1:]))


def _numbers(name: str, first: str, last: str) -> list[str]:
    if int(first) > int(last):
        raise ValueError(f"The range {{{first}..{last}}} in {name!r} goes down")
    padded = first != "0" and first.startswith("0")
    if len(first) > len(last) or (padded and len(first) != len(last)):
        raise ValueError(
            f"The range {{{first}..{last}}} in {name!r} is padded to another width than its end has"
        )
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
