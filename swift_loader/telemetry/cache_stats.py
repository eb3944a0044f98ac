"""What `loader.stats().cache` is: the frozen numbers of a cache. Pure.

Apart from the others, because workers have it too, and are to start fast.
"""

from __future__ import annotations

from dataclasses import dataclass

from swift_loader.telemetry.units import format_bytes, format_seconds

__all__ = ["CacheStats"]


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache has done: up to `saved_s` for one consumer, from `kept` on for the whole store.

    Attributes
    ----------
    hits:
        Samples that the cache had when they were asked for. Those that were read ahead count.
    misses:
        Samples that it did not have.
    disk_hits:
        Those of `hits` that were in files.
    hit_bytes:
        Bytes of `hits`.
    saved_s:
        How long it had taken to make the samples in `hits`.
    kept:
        Samples that came into the memory.
    evicted:
        Samples that left it, to make room for others that are wanted sooner.
    refused:
        Samples that found no room.
    memory_used, memory_size:
        Bytes of the memory: in use, and in all.
    disk_used, disk_size:
        Bytes of the files: in use, and their bound (None: no bound).
    """

    hits: int = 0
    misses: int = 0
    disk_hits: int = 0
    hit_bytes: int = 0
    saved_s: float = 0.0
    kept: int = 0
    evicted: int = 0
    refused: int = 0
    memory_used: int = 0
    memory_size: int = 0
    disk_used: int = 0
    disk_size: int | None = None

    @property
    def hit_rate(self) -> float:
        """Of all samples that were asked for."""
        return self.hits / max(1, self.hits + self.misses)

    def __str__(self) -> str:
        files = ""
        if self.disk_used:
            bound = "" if self.disk_size is None else f" of {format_bytes(self.disk_size)}"
            files = f"; in files {format_bytes(self.disk_used)}{bound}"
        return (
            f"cache: {self.hit_rate:.1%} of {self.hits + self.misses:,} samples were there"
            f" ({format_bytes(self.hit_bytes)}, {format_seconds(self.saved_s)} of work); memory"
            f" {format_bytes(self.memory_used)} of {format_bytes(self.memory_size)}, evicted"
            f" {self.evicted:,}{files}"
        )
