"""Endpoints as a source of workers for a loader: what ``remote_workers=["tcp://…"]`` means."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from swift_loader.errors import ConfigError
from swift_loader.pipeline.link import Link
from swift_loader.pipeline.sources import Job
from swift_loader.remote.client import Address, EndpointLink, sha256_of
from swift_loader.remote.keys import Keys, load_keys

__all__ = ["EndpointSource", "check_address", "open_source"]


@dataclass(frozen=True)
class EndpointSource:
    """One endpoint; see `swift_loader.pipeline.sources.Source`."""

    address: str
    keys: Keys | None

    @property
    def nb_links(self) -> int:
        return 1

    def launchers(self, job: Job) -> Sequence[Callable[[int], Link]]:
        address = Address(self.address, self.keys, job.timeout_s)
        sha256 = sha256_of(job.payload_fd)
        return [lambda worker: EndpointLink(worker, address, job, sha256)]


def open_source(address: str, key: str | os.PathLike[str] | None) -> EndpointSource:
    """The endpoint at `address`; `key` names the key file. Raises `ConfigError`."""
    check_address(address)
    return EndpointSource(address, load_keys(key))


def check_address(address: str) -> None:
    """Raises `ConfigError` unless `address` is one to connect to."""
    parts = urlsplit(address)
    try:
        good = (
            parts.scheme == "tcp" and bool(parts.hostname) and bool(parts.port) and not parts.path
        ) or (parts.scheme == "ipc" and bool(parts.netloc or parts.path))
    except ValueError:  # a port out of range
        good = False
    if not good:
        raise ConfigError(f"{address!r} is no address of an endpoint: give tcp://host:port")
