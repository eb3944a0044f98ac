"""What the store's books know of a sample, and of a client. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from swift_loader.cache.extents import extent_of
from swift_loader.cache.messages import Ask

__all__ = ["Client", "Counts", "Key", "Sample", "Waiting", "is_busy", "is_free"]

Key = tuple[int, int]


@dataclass(slots=True, eq=False)
class Sample:
    """A key of which something is known; its states are those of the books."""

    key: Key
    numbers: int = 0
    skeleton: int = 0
    cost_us: int = 0
    offset: int = -1  # in memory
    there: bool = False  # in memory, and written
    file: tuple[int, int, int] | None = None  # segment, offset, checksum or -1: written
    placed_in: tuple[int, int] | None = None  # where its maker writes it
    maker: int | None = None
    pins: int = 0
    waits: list[Waiting] = field(default_factory=list)

    @property
    def extent(self) -> int:
        return extent_of(self.numbers + self.skeleton)


@dataclass(slots=True, eq=False)
class Waiting:
    """A client that is to be answered once its samples are there, or free."""

    client: int
    ask: Ask
    over: bool = False


@dataclass(slots=True, eq=False)
class Client:
    """What a client looks at, by the serial of its question, and what it makes."""

    consumer: int
    made: set[Key] = field(default_factory=set)  # or to be made
    pinned: dict[int, list[Sample]] = field(default_factory=dict)
    waiting: dict[int, Waiting] = field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """Of one consumer."""

    hits: int = 0
    misses: int = 0
    disk_hits: int = 0
    hit_bytes: int = 0
    saved_us: int = 0

    def hit(self, sample: Sample) -> None:
        """One that was there."""
        self.hits += 1
        self.hit_bytes += sample.numbers + sample.skeleton
        self.saved_us += sample.cost_us


def is_free(sample: Sample) -> bool:
    """Neither there nor made by anybody."""
    return not sample.there and sample.file is None and sample.maker is None


def is_busy(sample: Sample) -> bool:
    """Not there, and made by somebody."""
    return not sample.there and sample.file is None and sample.maker is not None
