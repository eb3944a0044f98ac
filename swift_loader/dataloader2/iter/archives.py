"""From archives and compressed files to what is in them.

The pipes take `(path, binary stream)` pairs and yield `(path, stream)` pairs; the path of a member
is the archive's path joined with the member's name: below it, or `ValueError` where the name leads
out by ``..``. A stream closes itself when nobody holds it any more (torch's `StreamWrapper`), and
the archive's with the last of its members.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.utils.common import StreamWrapper

from swift_loader.dataloader2.registry import functional_datapipe

__all__ = [
    "Bz2FileLoader",
    "CompressionType",
    "Decompressor",
    "Extractor",
    "TarArchiveLoader",
    "WebDataset",
    "XzFileLoader",
    "ZipArchiveLoader",
]

_PathAndStream = tuple[str, Any]


class _ArchivePipe(IterDataPipe[tuple[str, StreamWrapper]]):
    """What the readers of archives have in common. `length`: a nominal `len`, -1 for none."""

    def __init__(self, datapipe: Iterable[_PathAndStream], length: int = -1) -> None:
        self.datapipe = datapipe
        self.length = length

    def _members(self, path: str, stream: StreamWrapper) -> Iterator[tuple[str, Any]]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[tuple[str, StreamWrapper]]:
        for path, opened in self.datapipe:
            stream = opened if isinstance(opened, StreamWrapper) else StreamWrapper(opened)
            for name, member in self._members(path, stream):
                yield name, StreamWrapper(member, stream, name=name)
            stream.autoclose()

    def __len__(self) -> int:
        if self.length == -1:
            raise TypeError(f"{type(self).__name__} has no length: give it one by `length`")
        return self.length


@functional_datapipe("load_from_tar")
class TarArchiveLoader(_ArchivePipe):
    """Yields the files in tar archives (`.load_from_tar`).

    `mode`: of `tarfile.open`. Where the stream can't seek, it is read once from front to back, and
    each member must be read before the next is asked for. `length`: nominal `len`.
    """

    def __init__(
        self, datapipe: Iterable[_PathAndStream], mode: str = "r:*", length: int = -1
    ) -> None:
        super().__init__(datapipe, length)
        self.mode = mode

    def _members(self, path: str, stream: StreamWrapper) -> Iterator[tuple[str, Any]]:
        opened = getattr(stream, "file_obj", None)
        if isinstance(opened, tarfile.TarFile):  # `decompress` has opened it
            yield from _tar_members(path, opened)
            return
        seekable = hasattr(stream, "seekable") and stream.seekable()
        mode: Any = self.mode if seekable else self.mode.replace(":", "|")
        fileobj: Any = stream
        # Never closed here: its members are read from it for as long as somebody holds one.
        archive = tarfile.open(fileobj=fileobj, mode=mode)  # noqa: SIM115
        yield from _tar_members(path, archive)


def _tar_members(path: str, archive: tarfile.TarFile) -> Iterator[tuple[str, Any]]:
    for info in archive:
        if info.isfile():
            yield _member_path(path, info.name), archive.extractfile(info)


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # such codes would drive a terminal


def _member_path(path: str, name: str) -> str:
    """The archive's path joined with a member's name, so that it never leads out of it.

    A later pipe may save the member there, and a name from elsewhere must not choose a place on
    this disk. Absolute names lose their root, as with ``tar``. `ValueError` for a name that leads
    out by ``..`` or has control characters.
    """
    inner = os.path.normpath(name.lstrip("/"))
    if inner.split("/")[0] == ".." or _CONTROL.search(name):
        raise ValueError(
            f"the archive {path} has a member named {name!r}, which leads out of the archive's "
            "folder or has control characters; take it out of the archive"
        )
    return os.path.join(path, inner)


@functional_datapipe("load_from_zip")
class ZipArchiveLoader(_ArchivePipe):
    """Yields the files in zip archives (`.load_from_zip`). `length`: nominal `len`."""

    def _members(self, path: str, stream: StreamWrapper) -> Iterator[tuple[str, Any]]:
        fileobj: Any = stream
        archive = zipfile.ZipFile(fileobj)
        for info in archive.infolist():
            if not info.is_dir():
                yield _member_path(path, info.filename), archive.open(info)


@functional_datapipe("load_from_bz2")
class Bz2FileLoader(_ArchivePipe):
    """Decompresses bz2 streams; paths lose `.bz2` (`.load_from_bz2`). `length`: nominal `len`."""

    def _members(self, path: str, stream: StreamWrapper) -> Iterator[tuple[str, Any]]:
        fileobj: Any = stream
        yield path.removesuffix(".bz2"), bz2.BZ2File(fileobj)


@functional_datapipe("load_from_xz")
class XzFileLoader(_ArchivePipe):
    """Decompresses xz streams; paths lose `.xz` (`.load_from_xz`). `length`: nominal `len`."""

    def _members(self, path: str, stream: StreamWrapper) -> Iterator[tuple[str, Any]]:
        fileobj: Any = stream
        yield path.removesuffix(".xz"), lzma.LZMAFile(fileobj)  # noqa: SIM115


class CompressionType(Enum):
    """What `decompress` can read."""

    GZIP = "gzip"
    LZMA = "lzma"
    TAR = "tar"
    ZIP = "zip"
    BZIP2 = "bz2"


_OPENERS: dict[CompressionType, Callable[[Any], Any]] = {
    CompressionType.GZIP: lambda stream: gzip.GzipFile(fileobj=stream),
    CompressionType.LZMA: lzma.LZMAFile,
    CompressionType.TAR: lambda stream: tarfile.open(fileobj=stream, mode="r:*"),  # noqa: SIM115
    CompressionType.ZIP: zipfile.ZipFile,
    CompressionType.BZIP2: bz2.BZ2File,
}

_SUFFIXES = {
    ".tar.gz": CompressionType.TAR,
    ".tar.xz": CompressionType.TAR,
    ".tar.bz2": CompressionType.TAR,
    ".tgz": CompressionType.TAR,
    ".tar": CompressionType.TAR,
    ".gz": CompressionType.GZIP,
    ".xz": CompressionType.LZMA,
    ".bz2": CompressionType.BZIP2,
    ".zip": CompressionType.ZIP,
}


@functional_datapipe("extract")
@functional_datapipe("decompress")
class Decompressor(IterDataPipe[tuple[str, StreamWrapper]]):
    """Opens each compressed stream, paths unchanged (`.decompress`, `.extract`).

    `file_type`: a `CompressionType` or its value; `None` goes by the path's suffix (`RuntimeError`
    for an unknown one). Of tar and zip archives it yields the opened `TarFile`/`ZipFile`; use
    `load_from_tar` and `load_from_zip` for their members.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[_PathAndStream],
        file_type: str | CompressionType | None = None,
    ) -> None:
        self.source_datapipe = source_datapipe
        if isinstance(file_type, str):
            file_type = CompressionType(file_type.lower())
        self.file_type = file_type

    def __iter__(self) -> Iterator[tuple[str, StreamWrapper]]:
        for path, opened in self.source_datapipe:
            stream = opened if isinstance(opened, StreamWrapper) else StreamWrapper(opened)
            file_type = self.file_type or _type_by_suffix(path)
            yield path, StreamWrapper(_OPENERS[file_type](stream), stream, name=path)

    def __len__(self) -> int:
        return len(self.source_datapipe)


Extractor = Decompressor


def _type_by_suffix(path: str) -> CompressionType:
    for suffix, file_type in _SUFFIXES.items():
        if path.lower().endswith(suffix):
            return file_type
    raise RuntimeError(
        f"decompress does not know the suffix of {path}; it knows {', '.join(_SUFFIXES)}. "
        "Give `file_type`."
    )


# "folder.x/name.key.more": the key is what follows the first dot of the file's own name.
_KEYED_NAME = re.compile(r"^((?:.*/)?[^/.]+)\.([^/]*)$")


@functional_datapipe("webdataset")
class WebDataset(IterDataPipe[dict[str, Any]]):
    """Gathers consecutive `(path, data)` with the same base name into one dict (`.webdataset`).

    The convention of the WebDataset project: `a/7.jpg`, `a/7.cls` give `{"__key__": "a/7", ".jpg":
    ..., ".cls": ...}`. Names without a dot are left out. `ValueError` for a name that comes twice
    in a row of one sample.
    """

    def __init__(self, source_datapipe: IterDataPipe[tuple[str, Any]]) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Iterator[dict[str, Any]]:
        sample: dict[str, Any] = {}
        for path, data in self.source_datapipe:
            match = _KEYED_NAME.match(path)
            if match is None:
                continue
            base_name, key = match.group(1), "." + match.group(2)
            if sample and sample["__key__"] != base_name:
                yield sample
                sample = {}
            if key in sample:
                raise ValueError(f"{path} comes twice in one sample")
            sample["__key__"] = base_name
            sample[key] = data
        if sample:
            yield sample
