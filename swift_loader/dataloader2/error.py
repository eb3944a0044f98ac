"""What a data pipe graph and its loader raise beside the user's own errors."""

from __future__ import annotations

from swift_loader.errors import LoaderError

__all__ = ["PauseIteration", "PeerFailedError", "PrefetchTimeoutError"]


class PauseIteration(StopIteration):
    """Raised from a pipe: the loader stops yielding, but the epoch is not over.

    `DataLoader2` turns it into a plain `StopIteration` and does not finalize the iteration.
    """


class PrefetchTimeoutError(LoaderError, RuntimeError):
    """Nothing came from a pipe within its timeout. `timeout` is that timeout in seconds."""

    def __init__(self, timeout: float, where: str = "the source pipe") -> None:
        super().__init__(
            f"Nothing came from {where} within {timeout:g} s. Look for a source that hangs, or for "
            "a rank that died or makes fewer steps; raise `timeout` if the data takes longer."
        )
        self.timeout = timeout
        self.where = where

    def __reduce__(self) -> tuple[type[PrefetchTimeoutError], tuple[float, str]]:
        return type(self), (self.timeout, self.where)


class PeerFailedError(LoaderError, RuntimeError):
    """Another rank's pipe raised, so no rank can go on. Names the rank and its error."""
