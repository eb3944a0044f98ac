"""The consumers of one producer: who is there, and what each of them is sent.

Role: the producer. Receives `Join`, `Took` and `Leave`; `Member` sends the answers. There is no
thread: the producer calls `serve`, which blocks in one ``poll`` on the listening socket and on all
consumers' sockets together. What one consumer does wrong ends that consumer alone.
"""

from __future__ import annotations

import math
import secrets
import select
import time
from typing import Protocol

import loguru

from swift_loader.sharing.history import Band, History
from swift_loader.sharing.lag import Lag
from swift_loader.sharing.member import Member
from swift_loader.sharing.messages import (
    VERSION,
    Admit,
    Ended,
    EpochBegins,
    EpochEnds,
    Join,
    Leave,
    Message,
    Position,
    Took,
)
from swift_loader.sharing.port import PortOwner
from swift_loader.sharing.regions import RegionTable, SharedBatch
from swift_loader.transport.channel import ChannelClosedError
from swift_loader.transport.table import MessageError, unpack

__all__ = ["Audience"]

_REPORTS_A_BUFFER = 2


class Epochs(Protocol):
    """What there is to know of epochs; `LoaderEpochs` does."""

    def following(self) -> EpochBegins:
        """The epoch after this one."""

    def rest(self, first: int) -> EpochBegins:
        """This epoch as somebody sees it who gets its batches from `first` on."""


class Audience:
    """See the module's text. `epochs` says how long they are; `owner` is closed with this."""

    def __init__(
        self,
        owner: PortOwner,
        epochs: Epochs,
        regions: RegionTable,
        band: Band,
        max_sent: int,
        lag_timeout_s: float,
        wait_for: int,
    ) -> None:
        self._owner = owner
        self._epochs = epochs
        self._history: History[SharedBatch] = History(band)
        self._max_sent = max_sent
        self._lag = Lag(lag_timeout_s)
        self._regions = regions
        self._members: dict[int, Member] = {}  # by descriptor
        self._identity = secrets.token_hex(8)
        self._wait_for = wait_for  # until so many were there at once
        self._said_waiting = False
        self._logger = loguru.logger.bind(swift_loader="producer")
        self._poll = select.poll()
        self._poll.register(self._owner, select.POLLIN)

    # ---- the epoch

    def begin(self, begins: EpochBegins) -> None:
        """The loader has begun an epoch."""
        self._history.begin(begins)
        for member in self._in_state("waiting"):
            member.activate(self._history, self._history.head - 1)
        self._feed_all()

    def publish(self, batch: SharedBatch) -> int:
        """Send the next batch to everybody who takes part; gives its index in the epoch."""
        self._history.add(batch, batch.used_bytes)
        for member in self._in_state("active"):
            member.behind += 1
        del batch
        self._feed_all()
        return self._history.next.k - 1

    def end_epoch(self, note: bytes = b"") -> None:
        """Tell everybody that the epoch is over, if one is under way."""
        if self._history.open:
            at = self._history.next
            self._history.end(EpochEnds(at.epoch, at.k, self._epochs.following(), note))
            self._feed_all()

    def taken_by_all(self) -> Position | None:
        """The first batch that some consumer has not taken yet. None before the first epoch."""
        if self._history.begins is None:
            return None
        behind = max((m.behind for m in self._in_state("active")), default=0)
        return self._history.position_behind(behind)

    # ---- waiting for consumers

    @property
    def is_wanted(self) -> bool:
        """Whether anybody takes part in the epoch."""
        return bool(self._in_state("active"))

    def wait_for_room(self, deadline_s: float) -> bool:
        """Serve until a batch can be published without waiting; False at the deadline."""
        wait_s: float | None = 0.0
        while True:
            self.serve(wait_s)
            ready, wait_s = self._room()
            left_s = deadline_s - time.monotonic()
            if ready or left_s <= 0:
                return ready
            wait_s = _shorter(wait_s, left_s)

    def _room(self) -> tuple[bool, float | None]:
        """``(whether to go on, seconds until somebody has been waited for too long)``."""
        active = self._in_state("active")
        if len(active) < self._wait_for:
            if not self._said_waiting:
                self._logger.info(
                    "{} of {} consumers are at {}: waiting",
                    len(active),
                    self._wait_for,
                    self._owner.port,
                )
                self._said_waiting = True
            return False, None
        self._wait_for = 0
        if not active:
            if self._in_state("waiting"):
                return True, None  # for the next epoch; nobody wants the rest of this one
            if not self._said_waiting:
                self._logger.info("no consumer at {}: waiting", self._owner.port)
                self._said_waiting = True
            return False, None
        self._said_waiting = False
        full = [m for m in active if m.full]
        if not full:
            return True, None
        if len(full) < len(active):
            return False, self._lag.check(full)
        for member in full:  # all are busy: nobody is held up
            member.full_since_s = None
        return False, None

    def finish(self, deadline_s: float) -> None:
        """Wait until every consumer has been sent everything, and tell them that this was all."""
        self.serve(0.0)
        while True:
            behind = [
                m
                for m in self._members.values()
                if m.state == "new"
                or (m.state == "active" and (m.channel.pending or m.cursor < self._history.head))
            ]
            left_s = deadline_s - time.monotonic()
            if not behind or left_s <= 0:
                break
            self.serve(_shorter(self._lag.check(behind), left_s))
        for member in self._members.values():
            member.end(Ended())

    # ---- consumers

    def serve(self, wait_s: float | None) -> None:
        """Do what consumers ask for; wait at most `wait_s` for the first of them (None: ever)."""
        timeout_ms = None if wait_s is None else math.ceil(min(wait_s, 1e6) * 1000)
        for fd, _ in self._poll.poll(timeout_ms):
            member = self._members.get(fd)
            if member is not None:
                self._serve_one(member, fd)
            else:
                self._accept()

    def members(self) -> list[Member]:
        """Those that have said who they are."""
        members = list(self._members.values())  # at once: threads of sinks ask too
        return [m for m in members if m.state != "new"]

    def drop_all(self, reason: str) -> None:
        """Tell everybody why nothing more will come."""
        for member in self._members.values():
            member.drop(reason)

    def close(self) -> None:
        """Give up the port, and close all sockets. May be called again."""
        self._owner.close()
        for member in self._members.values():
            member.channel.flush()
            member.close()
        self._members.clear()
        self._regions.close()

    def _in_state(self, state: str) -> list[Member]:
        return [m for m in self._members.values() if m.state == state]

    def _accept(self) -> None:
        found = self._owner.accept()
        if found is None:
            return
        channel, pid = found
        self._members[channel.fileno()] = Member(channel, pid, self._max_sent)
        self._poll.register(channel, select.POLLIN)

    def _serve_one(self, member: Member, fd: int) -> None:
        try:
            for frame in member.channel.receive(wait=False):
                self._on_message(member, unpack(*frame))
            member.channel.flush()
            self._feed(member, fd)
        except ChannelClosedError:
            self._remove(member, fd)
        except MessageError as error:
            self._logger.warning("consumer {} is dropped: {}", member.name, error)
            member.drop(f"the producer could not make sense of what this consumer sent: {error}")
            self._remove(member, fd)

    def _feed(self, member: Member, fd: int) -> None:
        try:
            member.feed(self._history)
        except ChannelClosedError:
            self._remove(member, fd)
            return
        stuck = member.channel.pending
        if stuck != member.watched:
            member.watched = stuck
            self._poll.modify(member.channel, select.POLLIN | (select.POLLOUT if stuck else 0))

    def _feed_all(self) -> None:
        gone, self._regions.gone = self._regions.gone, []
        lowest = None
        for fd, member in list(self._members.items()):
            if gone and member.state != "over":
                member.forget(gone)
            if member.state == "active":
                self._feed(member, fd)
            if member.state == "active":
                lowest = member.cursor if lowest is None else min(lowest, member.cursor)
        self._history.forget(lowest)

    def _remove(self, member: Member, fd: int) -> None:
        if self._members.pop(fd, None) is None:
            return
        if member.state in ("active", "waiting"):
            self._logger.info("consumer {} is gone", member.name)
        self._poll.unregister(fd)
        member.close()

    def _on_message(self, member: Member, message: Message) -> None:
        match message:
            case Took(count, leases):
                member.took(count, leases)
            case Leave():
                member.end(None)
                self._logger.info("consumer {} leaves", member.name)
            case Join() if member.state == "new":
                message.check()
                self._admit(member, message)
            case _:
                raise MessageError(f"{type(message).__name__} is not expected from it now")

    def _admit(self, member: Member, join: Join) -> None:
        if join.version != VERSION:
            member.drop(f"it speaks version {join.version}, the producer {VERSION}: install one")
            return
        name = "".join(c if c.isprintable() else "?" for c in join.name[:80])  # for terminals
        member.name = f"{name} (process {member.pid})"
        member.joined_s = time.monotonic()
        history = self._history
        begins: EpochBegins | None = history.begins
        cursor: int | None = None
        not_before = None
        if join.position is not None and (join.strict or join.producer == self._identity):
            cursor = history.find(join.position)
            not_before = join.position
            if cursor is None and join.strict:
                member.drop(f"batch {join.position.k} of epoch {join.position.epoch} is gone")
                return
        if cursor is None:
            not_before = None
            cursor = history.whole_epoch
        if cursor is None and history.open and join.late == "now":
            cursor = history.head
        self._logger.info("consumer {} joins", member.name)
        at_head = cursor is None or cursor == history.head
        joins_now = cursor is not None and at_head and not_before is None
        if joins_now:
            begins = self._epochs.rest(history.next.k)
        elif at_head or begins is None:
            begins = self._epochs.following()
        report_every = max(1, self._max_sent // _REPORTS_A_BUFFER)
        member.post(Admit(begins, report_every, self._identity))
        if cursor is None:
            member.state = "waiting"
            return
        if joins_now:
            member.post(begins)
        member.activate(history, cursor, not_before)


def _shorter(wait_s: float | None, left_s: float) -> float | None:
    """The sooner of two waits; None and infinity are for ever."""
    if left_s == math.inf:
        return wait_s
    return left_s if wait_s is None else min(wait_s, left_s)
