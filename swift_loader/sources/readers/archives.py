"""Tar archives in webdataset's layout: a file is a shard, files of one name make an item."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from typing import Any

from swift_loader.sources.readers.addresses import found, opened
from swift_loader.sources.shards import Shards

__all__ = ["webdataset"]


def webdataset(addresses: str | Iterable[str], *, buffer: int = 0) -> Shards:
    """The samples of tar archives, each a dict of bytes by extension.

    As webdataset lays them out: neighbouring files whose paths are the same up to the first dot of
    the name make a sample. ``sample["__key__"]`` is that path, ``sample["__url__"]`` the archive.
    Decode the parts in the loader's `transform`, or with webdataset's own decoders. An archive
    can't be entered in the middle, so a resumed run reads it through up to where it was. It may be
    compressed: ``.tar.gz``, ``.tgz`` and others.

    Parameters
    ----------
    addresses:
        By fsspec. ``*`` stands for many, and so do braces in a single address
        (``"s3://data/{000..099}.tar"``), which need ``braceexpand``.
    buffer:
        As `Shards` has it.

    Raises
    ------
    ConfigError
        No file matches.
    """
    if isinstance(addresses, str) and "{" in addresses:
        addresses = list(Shards(addresses, _samples).shards)
    return Shards(found(addresses), _samples, buffer=buffer)


def _samples(address: str) -> Iterator[dict[str, Any]]:
    sample: dict[str, Any] = {}
    with opened(address) as file, tarfile.open(fileobj=file, mode="r|*") as archive:
        for member in archive:
            if not member.isfile():
                continue
            folder, _, name = member.name.rpartition("/")
            stem, _, extension = name.partition(".")
            if not stem or not extension:
                continue  # a hidden file, or one without an extension: of no sample
            key = f"{folder}/{stem}" if folder else stem
            if sample and sample["__key__"] != key:
                yield sample
                sample = {}
            content = archive.extractfile(member)
            assert content is not None
            sample.setdefault("__key__", key)
            sample.setdefault("__url__", address)
            sample[extension.lower()] = content.read()
            archive.members = []  # type: ignore[attr-defined]  # else all are kept
    if sample:
        yield sample
