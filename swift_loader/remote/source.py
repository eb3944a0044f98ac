"""Endpoints as a source of workers for a loader: what ``remote_workers=["tcp://…"]`` means."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swift_loader.pipeline.elsewhere import Brief
from swift_loader.pipeline.link import Link
from swift_loader.remote.address import Address, check_address
from swift_loader.remote.client import EndpointLink, sha256_of
from swift_loader.remote.keys import Keys, load_keys

__all__ = ["EndpointWorkers", "open_source"]


@dataclass(frozen=True)
class EndpointWorkers:
    """One endpoint; see `swift_loader.pipeline.elsewhere.RemoteWorkers`."""

    address: str
    keys: Keys | None

    @property
    def nb_links(self) -> int:
        return 1

    def launchers(self, brief: Brief) -> Sequence[Callable[[int], Link]]:
        address = Address(self.address, self.keys, brief.timeout_s)
        sha256 = sha256_of(brief.payload_fd)
        return [lambda worker: EndpointLink(worker, address, brief, sha256)]


def open_source(address: str, key: str | os.PathLike[str] | None) -> EndpointWorkers:
    """The endpoint at `address`; `key` names the key file. Raises `ConfigError`."""
    check_address(address)
    return EndpointWorkers(address, load_keys(key))
