"""The descriptors of an endpoint: how many there are, and a reserve for its own work.

ZeroMQ's threads accept whoever comes, as fast as they come. So the limit of this process is set
lower than it could be, and raised only while the endpoint starts workers, takes what they send, or
begins sessions: strangers run into the lower one.

On a Unix socket that would not do: there ZeroMQ ends the process that runs into a limit. So all
may be used, and there must be more than what it accepts before `Strangers` takes notice.
"""

from __future__ import annotations

import os
import resource

from swift_loader.errors import ConfigError

__all__ = ["Descriptors"]

_MOST_RESERVED = 512
_ENOUGH = 1 << 16  # where the system allows more, this many do
_LEAST_BY_PATH = 2048


class Descriptors:
    """A context manager: inside, all may be used; outside, after `hold_back`, not all."""

    def __init__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_NOFILE)
        soft, hard = self._before
        self._hard = hard
        self.limit = max(_finite(soft), min(_finite(hard), _ENOUGH))
        self._for_strangers = self.limit

    def hold_back(self, address: str) -> None:
        """From here on, half of those that are left are for the inside.

        Raises `ConfigError` where an endpoint that listens at `address` needs more.
        """
        by_path = address.startswith("ipc://")
        if by_path and self.limit < _LEAST_BY_PATH:
            raise ConfigError(
                f"--bind {address}: ZeroMQ ends a process that runs out of descriptors on a Unix "
                f"socket, so {_LEAST_BY_PATH} are wanted there, and {self.limit} are to be had: "
                "raise the hard limit (`ulimit -Hn`), or bind tcp://127.0.0.1:0"
            )
        with self:
            if not by_path:
                self._for_strangers = self.limit - min(_MOST_RESERVED, self.nb_left // 2)

    def __enter__(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.limit, self._hard))

    def __exit__(self, *exception: object) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._for_strangers, self._hard))

    def restore(self) -> None:
        """The limit as it was."""
        resource.setrlimit(resource.RLIMIT_NOFILE, self._before)

    @property
    def nb_left(self) -> int:
        """How many more this process may open. For the inside."""
        try:
            return max(0, self.limit - len(os.listdir("/dev/fd")))
        except OSError:  # not even one to look with
            return 0


def _finite(limit: int) -> int:
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit
