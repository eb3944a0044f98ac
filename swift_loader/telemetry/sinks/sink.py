"""What a sink is: something that is given figures now and then, or that fetches them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from swift_loader.telemetry.figures import Reading

__all__ = ["Open", "Sink", "SinkSpec", "Source"]


@dataclass(frozen=True)
class Source:
    """Whose figures they are. `read` may be called by any thread at any time.

    `number`: of the consumer among those of a machine, so that each has a port of its own.
    """

    name: str
    read: Callable[[], Sequence[Reading]]
    number: int = 0


class Sink(Protocol):
    """An open sink. Both calls may raise and may take long: `pump` calls them, in a thread."""

    def write(self, readings: Sequence[Reading]) -> None:
        """Take these figures."""

    def close(self) -> None:
        """Write what is left, and let go of what was opened here."""


Open = Callable[[Source], Sink]


@dataclass(frozen=True)
class SinkSpec:
    """A sink that was asked for. `name` is for messages, and holds no secret.

    `open` is called in the thread that starts the loader, and raises `ConfigError`. `pulls`: the
    sink asks `Source.read` by itself, and `write` is not called.
    """

    name: str
    open: Open
    pulls: bool = False
