"""The option `cache`: how much is kept, where, and under which key."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from swift_loader.errors import refuse

__all__ = ["Cache", "as_cache", "size_in_bytes"]

_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*\Z")


@dataclass(frozen=True)
class Cache:
    """How much the loader keeps of the samples that it has made, and where: for the option `cache`.

    Parameters
    ----------
    memory:
        How much memory the cache may take, for all processes of this host that share it. In bytes,
        or as a text such as ``"32GB"`` (powers of 1000) or ``"32GiB"`` (powers of 1024). None or 0:
        the cache keeps nothing in memory.
    disk:
        A folder for files that outlive the run. A later run finds them by `key` and by a
        fingerprint of the data set: its class, its arguments and its length.
    disk_size:
        How much room the files of this data set may take. None: as much as there is.
    key:
        Your name for what is kept. Trainings that have the same data set and the same key share one
        cache. Without a key (and without `disk`), only the processes of one run share it.
    samples:
        Whether the cache keeps what ``dataset[i]`` returns. False: it keeps only what the data set
        gives it by ``swift_loader.cache.current().get(key, make)``.

    Raises
    ------
    ConfigError
        Neither `memory` nor `disk` is given; `disk_size` is given without `disk`; or a value is not
        a size or not a key.
    """

    memory: int | str | None = None
    disk: str | os.PathLike[str] | None = None
    disk_size: int | str | None = None
    key: str | None = None
    samples: bool = True

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "memory", size_in_bytes("memory", self.memory) or 0)
        set_(self, "disk_size", size_in_bytes("disk_size", self.disk_size))
        if self.disk is not None:
            set_(self, "disk", os.path.abspath(os.fspath(self.disk)))
        elif self.disk_size is not None:
            refuse("disk_size", self.disk_size, "give disk too, a folder, or leave it out")
        if self.key is not None and not (isinstance(self.key, str) and self.key):
            refuse("key", self.key, "give a text, or None")
        if not self.memory and self.disk is None:
            refuse("memory", self.memory, "give memory, such as '32GB', or disk, or both")


def as_cache(name: str, value: Any) -> Cache | None:
    """The value of the option `cache`. Raises `ConfigError`."""
    if value is None or isinstance(value, Cache):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        refuse(name, value, "give a size, such as '32GB', or swift_loader.Cache(...)")
    return Cache(memory=size_in_bytes(name, value))


def size_in_bytes(name: str, value: Any) -> int | None:
    """A number of bytes, of a number or of a text such as ``"32GB"``. Raises `ConfigError`."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = _SIZE.match(value) if isinstance(value, str) else None
    if found is None or found[2].upper() not in _UNITS:
        refuse(name, value, "give a number of bytes, or a text such as '500MB', '32GB' or '1TB'")
    return int(float(found[1]) * _UNITS[found[2].upper()])
