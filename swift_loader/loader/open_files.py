"""How many descriptors a loader needs, and whether this process may have them. Told at once.

A process may open few files where nobody has raised the limit (`ulimit -n`; often 1,024, and 256 on
macOS). A loader that runs into it would fail later, in the middle of something.
"""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import dataclass

from swift_loader.errors import NoRoomError

__all__ = ["Need", "check_open_files"]

_A_WORKER = 3  # its messages, its end, its stack
_A_READER = 2  # to be woken by
_AN_ENDPOINT = 8  # two connections, and what ZeroMQ keeps for them
_ZEROMQ = 24
_REST = 16  # the data set's memory, files, and what the start of a worker needs for a moment


@dataclass(frozen=True)
class Need:
    """What of a loader takes descriptors of the training process."""

    workers: int
    readers: int
    endpoints: int = 0

    @property
    def count(self) -> int:
        """Descriptors, beside those that are in use for other things."""
        elsewhere = _ZEROMQ + _AN_ENDPOINT * self.endpoints if self.endpoints else 0
        return _A_WORKER * self.workers + _A_READER * self.readers + elsewhere + _REST


def check_open_files(need: Need, held: int = 0) -> None:
    """Raises `NoRoomError` where this process may not open as many; `held` are open already."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    try:
        in_use = len(os.listdir("/dev/fd")) - 1 - held  # one is to list them
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return  # there is no such folder here, so nobody can tell
        in_use = soft  # there is not even that one
    wanted = in_use + need.count
    if wanted <= soft:
        return
    may_raise = hard == resource.RLIM_INFINITY or hard >= wanted
    fix = (
        f"Raise it by `ulimit -n {wanted}` before the script, or by `resource.setrlimit` in it"
        if may_raise
        else f"The system lets this process raise it to {hard} at most (`ulimit -Hn`)"
    )
    raise NoRoomError(
        f"this loader needs {wanted} descriptors (open files), and this process may have {soft}: "
        f"{in_use} are in use, {_A_WORKER} go to each of {need.workers} workers, "
        f"{need.count - _A_WORKER * need.workers} to the rest. {fix}. Or give a smaller "
        "worker_per_consumer"
    )
