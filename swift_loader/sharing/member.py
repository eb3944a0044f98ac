"""A producer's end of one consumer: its socket, its place in the stream, its leases.

Sends `Admit`, `EpochBegins`, `Region`, `ForgetRegion`, `Batch`, `EpochEnds`, `Dropped`, `Ended`.

    state     meaning
    new       connected, has said nothing yet
    waiting   the next epoch will be its first
    active    has a cursor; holds the producer back when it is full
    over      left, was dropped or was told the end: only its leases remain, until its socket closes
"""

from __future__ import annotations

import select
from typing import Literal

from swift_loader.sharing.history import History, Published
from swift_loader.sharing.messages import (
    Batch,
    Dropped,
    EpochBegins,
    ForgetRegion,
    Message,
    Position,
)
from swift_loader.sharing.regions import SharedBatch
from swift_loader.transport.channel import Channel
from swift_loader.transport.table import MessageError, pack

__all__ = ["Member"]


class Member:
    """See the module's text.

    `behind`: batches published that it has not taken yet. `slack`: as many may it be behind before
    the producer waits for it, which it has done since `full_since_s`. `nb_taken`: batches that it
    has taken since it joined.
    """

    def __init__(self, channel: Channel, pid: int, max_sent: int) -> None:
        self.channel = channel
        self.pid = pid
        self.name = f"process {pid}"
        self.state: Literal["new", "waiting", "active", "over"] = "new"
        self.cursor = 0
        self.behind = 0
        self.slack = max_sent
        self.full_since_s: float | None = None
        self.warned = False
        self.watched = False  # for room in its socket
        self.nb_taken = 0
        self.joined_s = 0.0
        self.position = Position(0, 0)
        self._max_sent = max_sent
        self._untaken = 0
        self._not_before: Position | None = None
        self._leases: dict[int, SharedBatch] = {}
        self._nb_leases = 0
        self._regions: set[int] = set()
        self._writable = select.poll()
        self._writable.register(channel, select.POLLOUT)

    @property
    def full(self) -> bool:
        """Whether nothing more may be published before it takes something."""
        return self.state == "active" and self.behind >= self.slack

    def post(self, message: Message) -> None:
        """Send a message, as soon as the socket takes it."""
        self.channel.post(*pack(message))
        self.channel.flush()

    def activate(
        self, history: History[SharedBatch], cursor: int, not_before: Position | None = None
    ) -> None:
        """It is to be sent everything from `cursor` on, but nothing before `not_before`."""
        self.state = "active"
        self.cursor = cursor
        self._not_before = not_before
        self.behind = history.nb_batches_from(cursor)
        self.slack = self.behind + self._max_sent

    def took(self, count: int, leases: tuple[int, ...]) -> None:
        """It has taken `count` batches, and has let go of these leases.

        Raises `MessageError` where it was not sent so many.
        """
        if count > self._untaken or not self._leases.keys() >= set(leases):
            raise MessageError(f"it says that it took {count} batches of {self._untaken}")
        for lease in leases:
            self._leases.pop(lease, None)
        if count:
            self.nb_taken += count
            self._untaken -= count
            self._lag_shrinks(count)

    def end(self, message: Message | None) -> None:
        """It gets nothing more, after `message`."""
        if self.state != "over":
            self.state = "over"
            if message is not None:
                self.post(message)

    def drop(self, reason: str) -> None:
        """Go on without it. Its leases stay until its socket closes: it may be reading still."""
        self.end(Dropped(reason))

    def forget(self, regions: list[int]) -> None:
        """Nothing will lie in these regions any more."""
        for number in regions:
            if number in self._regions:
                self._regions.discard(number)
                self.channel.post(*pack(ForgetRegion(number)))

    def feed(self, history: History[SharedBatch]) -> None:
        """Send what it may have, as far as its socket takes it."""
        channel = self.channel
        while self.state == "active" and self.cursor < history.head and not channel.pending:
            item = history[self.cursor]
            if isinstance(item, Published):
                if self._too_early(item.at):
                    self._lag_shrinks(1)
                elif self._untaken >= self._max_sent or not self._send(item):
                    return
            elif isinstance(item, EpochBegins):
                if self._not_before is None or item.epoch >= self._not_before.epoch:
                    channel.post(*pack(item))
            elif not self._too_early(Position(item.epoch, item.nb_batches)):
                channel.post(*pack(item))
            self.cursor += 1
            channel.flush()

    def _too_early(self, at: Position) -> bool:
        if self._not_before is None:
            return False
        if at < self._not_before:
            return True
        self._not_before = None
        return False

    def _send(self, item: Published[SharedBatch]) -> bool:
        """False where the socket has no room for a descriptor just now."""
        batch, region = item.batch, item.batch.region
        number = 0
        if region is not None:
            number = region.number
            if number not in self._regions:
                if not self._writable.poll(0):
                    return False
                fds = () if region.fd is None else (region.fd,)
                self.channel.send(*pack(region.announce()), fds)
                self._regions.add(number)
            self._nb_leases += 1
            self._leases[self._nb_leases] = batch
        self._untaken += 1
        self.position = item.at
        self.channel.post(
            *pack(
                Batch(
                    self._nb_leases if region is not None else 0,
                    *item.at,
                    number,
                    batch.used_bytes,
                    batch.skeleton_bytes,
                    batch.skeleton,
                    batch.note,
                )
            )
        )
        return True

    def _lag_shrinks(self, count: int) -> None:
        """A band that was stretched to let it in is let go as it catches up."""
        self.behind -= count
        self.full_since_s = None
        self.warned = False
        self.slack = max(self._max_sent, min(self.slack, self.behind + self._max_sent))

    def close(self) -> None:
        """Its socket is closed: its leases are over."""
        self.state = "over"
        self._leases.clear()
        self.channel.close()
