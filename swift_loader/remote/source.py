"""Endpoints as a source of workers for a loader: what ``remote_workers=["tcp://…"]`` means."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swift_loader.errors import ConfigError
from swift_loader.pipeline.elsewhere import Brief, KeyFile
from swift_loader.pipeline.link import Link
from swift_loader.remote.address import Address, check_address, is_of_this_machine
from swift_loader.remote.client import EndpointLink, sha256_of
from swift_loader.remote.keys import Keys, load_keys

__all__ = ["EndpointWorkers", "keys_for", "open_source"]


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


def open_source(address: str, key: KeyFile) -> EndpointWorkers:
    """The endpoint at `address`; `key` names the key file, or is False: none, whatever comes.

    Raises `ConfigError`, also where another machine is to be trusted without a key by oversight.
    """
    check_address(address)
    return EndpointWorkers(address, keys_for(address, key))


def keys_for(address: str, key: KeyFile) -> Keys | None:
    """The keys for talking to `address`; None where it needs none. Raises `ConfigError`."""
    keys = None if key is False else load_keys(key)
    if keys is None and not is_of_this_machine(address):
        risk = (
            f"{address} without a key: whoever answers there, or sits on the way, can run any code "
            "in this process, and read what is sent"
        )
        if key is not False:
            raise ConfigError(
                f"{risk}. Make a key by `swift-loader keygen FILE`, and give it to both sides by "
                "--key FILE and remote_key=FILE (or SWIFT_LOADER_KEY=FILE). On a network where you "
                "trust everybody, remote_key=False goes without"
            )
        warnings.warn(risk, RuntimeWarning, stacklevel=2)
    elif keys is None and key is not False and address.startswith("tcp:"):
        warnings.warn(
            f"{address} without a key: any user of this machine who takes that port can run any "
            "code in this process. remote_key=FILE keeps others out; remote_key=False goes "
            "without, and without this warning",
            RuntimeWarning,
            stacklevel=2,
        )
    return keys
