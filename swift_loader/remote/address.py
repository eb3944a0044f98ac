"""The address of an endpoint, and how long it may be of no use."""

from __future__ import annotations

import time
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from swift_loader.errors import ConfigError
from swift_loader.remote.keys import Keys

__all__ = ["Address", "check_address", "is_of_this_machine"]

_MOST_LOSSES = 10  # without a batch between them


@dataclass
class Address:
    """An endpoint as this process sees it, over all links to it.

    `give_up_at_s`: when (by `time.monotonic`) it has been of no use for too long. `known`: it has
    let this process in before. `broken`: handshakes that broke, one after the other. `refusal`: why
    it lets nobody in for now, as it said itself.
    """

    address: str
    keys: Keys | None
    timeout_s: float
    give_up_at_s: float | None = None
    losses: int = 0
    known: bool = False
    broken: int = 0
    refusal: str = ""

    def wanted(self) -> None:
        """From now on it must be of use within `timeout_s`, unless that holds already."""
        if self.give_up_at_s is None:
            self.give_up_at_s = time.monotonic() + self.timeout_s

    def lost(self, counted: bool) -> None:
        """A connection was lost. Not `counted` where the endpoint asked to try again."""
        self.losses += counted
        self.wanted()

    def answers(self) -> None:
        """It takes orders."""
        self.give_up_at_s = None
        self.known = True
        self.broken = 0
        self.refusal = ""

    def useful(self) -> None:
        """It has made a batch."""
        self.losses = 0

    def given_up(self) -> str:
        """For how long it was of no use, if that is too long; empty as long as it is not."""
        if self.losses > _MOST_LOSSES:
            return f"in {_MOST_LOSSES} connections, one after the other"
        if self.give_up_at_s is not None and time.monotonic() >= self.give_up_at_s:
            return f"for remote_timeout={self.timeout_s:g} s"
        return ""


def is_of_this_machine(address: str) -> bool:
    """Whether what `address` leads to can't be anywhere else, as far as the text tells."""
    parts = urlsplit(address)
    if parts.scheme == "ipc" or parts.hostname == "localhost":
        return True
    try:
        return ip_address(parts.hostname or "").is_loopback
    except ValueError:  # a name, which may lead anywhere
        return False


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
