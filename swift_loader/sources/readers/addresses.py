"""Files by fsspec's addresses: local paths, ``s3://``, ``gs://``, ``https://`` and others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

import fsspec

from swift_loader.errors import refuse

__all__ = ["found", "opened"]


def opened(address: str, compression: str | None = "infer") -> IO[bytes]:
    """The file, to be read; decompressed by the ending of its name (None: as it is).

    Raises what fsspec raises: `FileNotFoundError`, or an `ImportError` that names the package for
    this kind of address.
    """
    file: Any = fsspec.open(address, "rb", compression=compression)
    opened_file: IO[bytes] = file.open()
    return opened_file


def found(addresses: str | Iterable[str]) -> list[str]:
    """The files that match these addresses (``*`` and ``?`` stand for others), sorted for each.

    Raises `ConfigError` where none matches.
    """
    files: list[str] = []
    for address in [addresses] if isinstance(addresses, str) else addresses:
        if not any(sign in address for sign in "*?["):
            files.append(address)
            continue
        system, path = fsspec.core.url_to_fs(address)
        matching = sorted(system.glob(path))
        if not matching:
            refuse("addresses", address, "no file matches it")
        files += [system.unstrip_protocol(one) if "://" in address else one for one in matching]
    return files
