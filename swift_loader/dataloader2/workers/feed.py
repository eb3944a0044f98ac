"""The taking end of a line: gives credit to one server, and holds the items that it made.

Pure but for its port. Credit: at most `nb_ahead` items are promised or held at a time, asked for in
chunks of about half of that, fewer where items are large.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import Any, Protocol

from swift_loader.batch.codec import decode
from swift_loader.pipeline.link import Event, MadeBatch, NotMade
from swift_loader.transport.messages import ErrorReport

__all__ = ["Feed", "Port"]

_CHUNK_BYTES = 1 << 20


class Port(Protocol):
    """Where a feed asks."""

    def give(self, ticket: int, epoch: int, nb_item: int) -> None:
        """Queue a `Give`, into a slot that the port chooses."""

    def flush(self) -> None:
        """Send what is queued, without waiting."""


class Feed:
    """The items of one server, in the order it made them.

    `items`: to be taken from the left, then call `ask`. `ended`: the epoch has no more than those.
    `fault`: the server's graph raised after those. `skipped`: the server has begun another epoch.
    """

    def __init__(self, nb_ahead: int) -> None:
        self.items: deque[Any] = deque()
        self.ended = False
        self.skipped = False
        self.fault: ErrorReport | None = None
        self._nb_ahead = nb_ahead
        self._chunk = max(1, nb_ahead // 2)
        self._epoch = -1
        self._tickets = count(1)
        self._asked: dict[int, int] = {}
        self._nb_promised = 0
        self._bytes_per_item = 1.0

    def begin(self, epoch: int, port: Port) -> None:
        """Forget what is there, and ask for the items of `epoch`."""
        self.items.clear()
        self._epoch = epoch
        self.go_on(port)

    def go_on(self, port: Port) -> None:
        """Ask a server that knows nothing of this epoch yet, for what comes after `items`."""
        self.ended = self.skipped = False
        self.fault = None
        self._asked.clear()
        self._nb_promised = 0
        self.ask(port)

    @property
    def is_settled(self) -> bool:
        """Is there nothing to wait for?"""
        return bool(self.items) or self.ended or self.skipped or self.fault is not None

    def ask(self, port: Port) -> None:
        """Give as much credit as is due."""
        if self.ended or self.fault is not None:
            return
        asked = False
        while True:
            nb_there = self._nb_promised + len(self.items)
            nb_item = min(self._chunk, int(_CHUNK_BYTES // self._bytes_per_item) or 1)
            if nb_there and nb_there + nb_item > self._nb_ahead:
                break
            ticket = next(self._tickets)
            self._asked[ticket] = nb_item
            self._nb_promised += nb_item
            port.give(ticket, self._epoch, nb_item)
            asked = True
        if asked:
            port.flush()

    def take(self, event: Event) -> None:
        """An answer of the server's. One to a question of an epoch before is dropped."""
        match event:
            case MadeBatch(ticket=ticket):
                nb_asked = self._asked.pop(ticket, None)
                if nb_asked is None:
                    event.parcel.discard()
                    return
                self._nb_promised -= nb_asked
                nbytes = event.parcel.nbytes
                items, self.ended = decode(*event.parcel.open())
                self._bytes_per_item = max(1.0, nbytes / max(1, len(items)))
                self.items.extend(items)
            case NotMade(ticket=ticket):
                nb_asked = self._asked.pop(ticket, None)
                if nb_asked is None:
                    return
                self._nb_promised -= nb_asked
                if event.fault is None:
                    self.skipped = True
                elif self.fault is None:
                    self.fault = event.fault
            case _:
                raise TypeError(f"a server does not answer with {type(event).__name__}")
