"""What a link to a worker on this machine needs of it: a process, or a thread of this process.

Siblings: `swift_loader.worker.launch` (processes) and `swift_loader.worker.threads`.
"""

from __future__ import annotations

from typing import Any, Protocol

from swift_loader.transport.channel import Channel
from swift_loader.worker.place import Place
from swift_loader.worker.progress import Progress

__all__ = ["BATCH_WORKER", "Launched", "Launcher"]

BATCH_WORKER = "swift_loader.worker.process"  # the kind of worker that makes batches of a dataset


class Launched(Protocol):
    """The training process's end of a worker that was asked for.

    `pid`: None until the worker runs; 0 for a thread of this process. Orders go down the `channel`,
    and batches come up; `Started` and `Exited` come up the `sentinel`.
    """

    pid: int | None
    channel: Channel
    sentinel: Channel
    progress: Progress

    @property
    def is_ending(self) -> bool:
        """Whether it is past the user's code."""

    def stack(self) -> str:
        """Its Python stacks on lines of their own, or why they can't be had."""

    def kill(self) -> None:
        """End it at once, if it runs: `Exited` comes, by SIGKILL."""

    def close(self) -> None:
        """Let go of it."""


class Launcher(Protocol):
    """Where such workers come from."""

    def spawn(
        self, index: int, place: Place, payload_fd: int, module: str = BATCH_WORKER
    ) -> Launched:
        """Ask for a worker. Returns at once. Raises `WorkerDiedError` where none can be had."""

    def lost(self, worker: Any) -> None:
        """The sentinel of `worker` closed before it told of its end."""

    def release(self) -> None:
        """One user less."""
