"""A rank of a group that has no workers: it takes the leader's batches.

See `swift_loader.sharing.group`.
"""

from __future__ import annotations

from swift_loader.errors import ClosedError, LoaderError
from swift_loader.loader.delivering import Delivering
from swift_loader.order.order import Order
from swift_loader.order.part import EpochPart, Number, ShardsOver
from swift_loader.pipeline.item import Decoder, Item
from swift_loader.plan import Plan
from swift_loader.sharing.group_reader import GroupReader
from swift_loader.sharing.notes import EndNote

__all__ = ["Member"]


class _Following:
    """A part that a `Member` has begun: the leader's `number` of it, and what was told of it.

    Where the order is no stream's, this rank counts by its own: it then need not hear of the end,
    and a sampler draws here too what its state tells.
    """

    def __init__(self, part: EpochPart, order: Order, number: int) -> None:
        self.part = part
        self.order = order
        self.number = number
        self.over: ShardsOver | None = None
        self.ends: dict[int, bytes] = {}
        self._counted = None if order.nb_shards else order.batches(part)
        self._fault: Exception | None = None
        self._at_end = False
        self.draw()

    def draw(self) -> None:
        """Look whether another batch comes."""
        if self._counted is None:
            return
        try:
            self._at_end = next(self._counted, None) is None
        except Exception as error:  # noqa: BLE001 - a sampler of the user's; the loop gets it
            self._fault = error

    @property
    def at_end(self) -> bool:
        """Whether it is known that no batch comes. Raises what the user's sampler did."""
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        return self._at_end


class Member(Delivering):
    """Takes the leader's batches. No workers. `decoder`: see `GroupReader`."""

    def __init__(self, port: str, decoder: Decoder | None) -> None:
        self._reader = GroupReader(port, decoder)
        self._at: _Following | None = None
        self._closed = False

    def set_plan(self, plan_id: int, plan: Plan) -> None:
        """The leader's workers know."""

    def prefetch(self, part: EpochPart, order: Order) -> None:
        """The leader does."""

    def begin(self, part: EpochPart, order: Order) -> None:
        """Deliver `part` from now on."""
        self._at = _Following(part, order, 1 if self._at is None else self._at.number + 1)

    def next(self, part: EpochPart) -> tuple[Number, Item] | None:
        """The next batch of `part`; None at its end."""
        if self._closed:
            raise ClosedError("the loader is closed; build a new one to go on")
        at = self._at
        if at is None or at.part is not part or at.at_end:
            return None
        read = self._reader.next(at.number)
        if isinstance(read, EndNote):
            at.ends, at.over = dict(read.ends), read.over
            return None
        if read is None:
            raise LoaderError(
                f"the rank of this group that has the workers left epoch {part.epoch}, and this "
                "one goes on: all ranks of a group must take the same batches"
            )
        note, item = read
        at.over = note.over
        own = at.order.checksum(note.number)
        if own is not None and note.checksum not in (None, own):
            raise LoaderError(
                f"batch {note.number.k} of epoch {part.epoch}: this rank's sampler gives other "
                "keys than that of the rank of its group that has the workers: seed both alike"
            )
        at.draw()
        return note.number, item

    def shard_ends(self, epoch: int) -> dict[int, bytes]:
        """See `Pipeline`."""
        return self._at.ends if self._at is not None and self._at.part.epoch == epoch else {}

    def shards_over(self, epoch: int) -> ShardsOver | None:
        """See `Pipeline`."""
        return self._at.over if self._at is not None and self._at.part.epoch == epoch else None

    def loop_waited(self, waited_s: float, now_s: float) -> None:
        """It is the leader's workers that are waited for."""

    def close(self) -> None:
        """Leave; batches that are held stay valid."""
        self._closed = True
        self._reader.leave()
