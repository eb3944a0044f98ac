"""The descriptors of an endpoint: how many there are, and a reserve for its own work.

ZeroMQ's threads accept whoever comes, as fast as they come. So the limit of this process is set
lower than it could be, and raised only while the endpoint starts workers, takes what they send, or
begins sessions: strangers run into the lower one.
"""

from __future__ import annotations

import os
import resource
from types import TracebackType

__all__ = ["Descriptors"]

_MOST_RESERVED = 512
_ENOUGH = 1 << 16  # where the system allows more, this many do


class Descriptors:
    """A context manager: inside, all may be used; outside, after `hold_back`, not all."""

    def __init__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_NOFILE)
        soft, hard = self._before
        self._hard = hard
        self.limit = max(_finite(soft), min(_finite(hard), _ENOUGH))
        self._for_strangers = self.limit

    def hold_back(self) -> None:
        """From here on, half of those that are left are for the inside."""
        with self:
            self._for_strangers = self.limit - min(_MOST_RESERVED, self.nb_left // 2)

    def __enter__(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.limit, self._hard))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
