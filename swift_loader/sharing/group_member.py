"""A rank of a group that has no workers: it takes the leader's batches.

See `swift_loader.sharing.group`.
"""

from __future__ import annotations

import threading

from swift_loader.errors import ClosedError, LoaderError
from swift_loader.loader.delivering import Delivering
from swift_loader.order.order import Order
from swift_loader.order.part import UNKNOWN, EpochPart, Number, ShardsOver
from swift_loader.pipeline.item import Decoder, Item
from swift_loader.plan import Plan
from swift_loader.sharing.group_reader import GroupReader
from swift_loader.sharing.notes import EndNote

__all__ = ["Member"]


class _Following:
    """A part that a `Member` has begun: the leader's `number` of it, and what was told of it.

    Where the plan says how many batches come, this rank counts them, and need not hear of the end.
    A sampler draws here too what its state tells: as far as the leader's was asked, and no further,
    for a sampler may change by that.
    """

    def __init__(self, part: EpochPart, order: Order, number: int) -> None:
        self.part = part
        self.order = order
        self.number = number
        self.over: ShardsOver | None = None
        self.end: EndNote | None = None
        self._left = None if part.count == UNKNOWN else len(part)
        self._drawn = order.batches(part) if order.draws else None
        self._nb_asked = 0

    @property
    def at_end(self) -> bool:
        """Whether it is known that no batch comes."""
        return self._left == 0

    def took(self) -> None:
        """The leader has given a batch. Raises what the user's sampler does."""
        if self._left is not None:
            self._left -= 1
        self._draw(self._nb_asked + 1)

    def ended(self, end: EndNote) -> None:
        """The leader has ended the part, or left it. Raises what the user's sampler does."""
        self.end, self.over = end, end.over
        self._draw(end.nb_asked or 0)

    def _draw(self, nb_asked: int) -> None:
        while self._drawn is not None and self._nb_asked < nb_asked:
            self._nb_asked += 1
            next(self._drawn, None)


class Member(Delivering):
    """Takes the leader's batches. No workers. `decoder`: see `GroupReader`."""

    def __init__(self, port: str, decoder: Decoder | None) -> None:
        self._reader = GroupReader(port, decoder)
        self._at: _Following | None = None
        self._reading = threading.Lock()  # a stager may still read of a part that the loop left
        self._closed = False

    def set_plan(self, plan_id: int, plan: Plan) -> None:
        """The leader's workers know."""

    def prefetch(self, part: EpochPart, order: Order) -> None:
        """The leader does."""

    def begin(self, part: EpochPart, order: Order) -> None:
        """Deliver `part` from now on; waits for the leader where a sampler draws."""
        before = self._at
        if before is not None and order.draws:
            with self._reading:
                self._draw_as_leader(before)
        self._at = _Following(part, order, 1 if before is None else before.number + 1)

    def _draw_as_leader(self, before: _Following) -> None:
        while before.end is None:
            read = self._reader.next(before.number)
            if isinstance(read, EndNote):
                before.ended(read)
            else:
                before.took()

    def next(self, part: EpochPart) -> tuple[Number, Item] | None:
        """The next batch of `part`; None at its end."""
        if self._closed:
            raise ClosedError("the loader is closed; build a new one to go on")
        at = self._at
        if at is None or at.part is not part:
            return None
        with self._reading:
            return self._next(at)

    def _next(self, at: _Following) -> tuple[Number, Item] | None:
        if at.at_end:
            return None
        read = at.end or self._reader.next(at.number)
        if isinstance(read, EndNote):
            if at.end is None:
                at.ended(read)
            if not read.left:
                return None
            raise LoaderError(
                f"the rank of this group that has the workers left epoch {at.part.epoch}, and this "
                "one goes on: all ranks of a group must take the same batches"
            )
        note, item = read
        at.over = note.over
        at.took()
        own = at.order.checksum(note.number)
        if own is not None and note.checksum not in (None, own):
            raise LoaderError(
                f"batch {note.number.k} of epoch {at.part.epoch}: this rank's sampler gives other "
                "keys than that of the rank of its group that has the workers: seed both alike"
            )
        return note.number, item

    def shard_ends(self, epoch: int) -> dict[int, bytes]:
        """See `Pipeline`."""
        at = self._at
        return dict(at.end.ends) if at is not None and at.part.epoch == epoch and at.end else {}

    def shards_over(self, epoch: int) -> ShardsOver | None:
        """See `Pipeline`."""
        return self._at.over if self._at is not None and self._at.part.epoch == epoch else None

    def loop_waited(self, waited_s: float, now_s: float) -> None:
        """It is the leader's workers that are waited for."""

    def close(self) -> None:
        """Leave; batches that are held stay valid."""
        self._closed = True
        self._reader.leave()
