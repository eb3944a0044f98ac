"""The serialized datasets that an endpoint holds: each once, however many sessions use it."""

from __future__ import annotations

import hashlib
import os

import psutil

from swift_loader.remote.messages import Chunk, FrameError
from swift_loader.transport.memory import create_region, map_shared

__all__ = ["HeldPayload", "Payloads"]


class HeldPayload:
    """One on its way, or complete: then `fd` is what workers map."""

    def __init__(self, nbytes: int, sha256: str) -> None:
        self.nbytes = nbytes
        self.sha256 = sha256
        self.users = 1
        self.fd = create_region(nbytes, "dataset")
        self._arrived = 0
        self._digest = hashlib.sha256()

    @property
    def complete(self) -> bool:
        return self._arrived == self.nbytes

    def add(self, chunk: Chunk) -> bool:
        """Write what arrived; True when that was all.

        Raises `FrameError` when it is not what comes next, or not what was announced.
        """
        end = chunk.offset + len(chunk.data)
        if chunk.offset != self._arrived or end > self.nbytes:
            raise FrameError("a chunk of the dataset that is not the next one")
        os.pwrite(self.fd, chunk.data, chunk.offset)
        self._digest.update(chunk.data)
        self._arrived = end
        if self.complete and self._digest.hexdigest() != self.sha256:
            raise FrameError("a dataset that is not the one which was announced")
        return self.complete

    def close(self) -> None:
        os.close(self.fd)


class Payloads:
    """All of them, by what they hold."""

    def __init__(self) -> None:
        self._complete: dict[str, HeldPayload] = {}

    def open(self, nbytes: int, sha256: str) -> HeldPayload:
        """The payload with these contents if it is here, else a new one to be filled.

        Raises `FrameError` when there is no room for it.
        """
        held = self._complete.get(sha256)
        if held is not None and held.nbytes == nbytes:
            held.users += 1
            return held
        available = psutil.virtual_memory().available
        if not 0 < nbytes <= available:
            raise FrameError(
                f"a dataset of {nbytes:,} bytes does not fit: this host has {available:,} available"
            )
        return HeldPayload(nbytes, sha256)

    def share(self, held: HeldPayload) -> HeldPayload:
        """`held` is complete: others may use it. Returns the one to use from now on."""
        other = self._complete.setdefault(held.sha256, held)
        if other is not held:
            held.close()
            other.users += 1
        return other

    def release(self, held: HeldPayload) -> None:
        """One user less; the last one frees it."""
        held.users -= 1
        if held.users == 0:
            if self._complete.get(held.sha256) is held:
                del self._complete[held.sha256]
            held.close()

    @property
    def nbytes(self) -> int:
        return sum(held.nbytes for held in self._complete.values())


def map_whole(fd: int) -> memoryview:
    """A payload's bytes, to be sent."""
    return memoryview(map_shared(fd, os.fstat(fd).st_size))
