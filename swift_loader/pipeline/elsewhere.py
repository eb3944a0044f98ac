"""Where workers come from that are not child processes: endpoints on other hosts, Ray, yours.

Nothing in the pipeline knows any of them. `RemoteWorkers` makes links for a `Brief`; a string such
as ``"tcp://node01:6543"`` stands for one by its scheme, whose module is looked up by name when it
is first asked for: it is an edge of the package with requirements of its own (ZeroMQ, Ray), and
nothing below an edge imports it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from swift_loader.errors import ConfigError
from swift_loader.pipeline.link import Link
from swift_loader.worker.place import Place

__all__ = ["Brief", "KeyFile", "RemoteWorkers", "launchers_of", "remote_workers_of"]

KeyFile = str | os.PathLike[str] | Literal[False] | None  # False: none, and that is meant
_MODULES = {"tcp": "swift_loader.remote.source", "ipc": "swift_loader.remote.source"}


@dataclass(frozen=True)
class Brief:
    """What the workers are to work on.

    `payload_fd`: a descriptor of the serialized `Recipe`, open as long as the loader is.
    `first_worker`: the number of the first link; `nb_links`: those of all remote workers.
    """

    place: Place
    payload_fd: int
    first_worker: int
    nb_links: int
    timeout_s: float


@runtime_checkable
class RemoteWorkers(Protocol):
    """Some workers elsewhere."""

    @property
    def nb_links(self) -> int:
        """How many links `launchers` gives."""

    def launchers(self, brief: Brief) -> Sequence[Callable[[int], Link]]:
        """One function a link: from its number to the link, started. Called again to replace one.

        They may raise `LoaderError` where there is no use in trying again.
        """


def remote_workers_of(option: Any, key: KeyFile) -> list[RemoteWorkers]:
    """The `remote_workers` option: None, `RemoteWorkers`, an address, or a sequence of these.

    Raises `ConfigError`.
    """
    if option is None:
        return []
    listed = [option] if isinstance(option, (str, RemoteWorkers)) else option
    if not isinstance(listed, Sequence):
        raise ConfigError(
            f"remote_workers={option!r}: give addresses such as ['tcp://node01:6543'], or an "
            "object such as swift_loader.remote.RayWorkers(...)"
        )
    return [one if isinstance(one, RemoteWorkers) else _from_address(one, key) for one in listed]


def launchers_of(
    elsewhere: Sequence[RemoteWorkers],
    place: Place,
    payload_fd: int,
    nb_local: int,
    timeout_s: float,
) -> Mapping[int, Callable[[int], Link]]:
    """The launchers of all of them, numbered on from the local workers."""
    launchers: dict[int, Callable[[int], Link]] = {}
    nb_links = sum(one.nb_links for one in elsewhere)
    for one in elsewhere:
        first = nb_local + len(launchers)
        brief = Brief(place, payload_fd, first, nb_links, timeout_s)
        launchers.update(enumerate(one.launchers(brief), first))
    return launchers


def _from_address(address: Any, key: KeyFile) -> RemoteWorkers:
    scheme = address.partition("://")[0] if isinstance(address, str) else ""
    if scheme not in _MODULES:
        raise ConfigError(
            f"remote_workers: {address!r} is no address of an endpoint: give one as "
            "'tcp://host:port', where `swift-loader serve` runs"
        )
    try:
        module = importlib.import_module(_MODULES[scheme])
    except ImportError as error:
        raise ConfigError(
            f"remote_workers={address!r} needs pyzmq and msgspec ({error}): "
            "pip install 'swift-loader[remote]'"
        ) from error
    workers: RemoteWorkers = module.open_source(address, key)
    return workers
