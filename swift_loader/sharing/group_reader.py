"""One rank's end of a group: the batches of the epoch that it is in, as the leader publishes them.

Role: a rank of the group, the leader among them. Sends what `Subscription` sends.
"""

from __future__ import annotations

import time

import numpy as np

from swift_loader.errors import LoaderError
from swift_loader.pipeline.item import Decoder, Item
from swift_loader.pipeline.link import HeldParcel, MadeBatch
from swift_loader.sharing.messages import (
    VERSION,
    Admit,
    Batch,
    Dropped,
    Ended,
    EpochBegins,
    EpochEnds,
    Join,
    Message,
)
from swift_loader.sharing.notes import EndNote, Note, unpacked
from swift_loader.sharing.port import Port
from swift_loader.sharing.subscription import Subscription
from swift_loader.transport.channel import ChannelClosedError
from swift_loader.transport.messages import StageTimes
from swift_loader.worker.faults import revive

__all__ = ["GroupReader"]

_MAX_KEPT = 16
_CONNECT_S = 60.0
_OPENED = HeldParcel(b"", np.empty(0, np.uint8))  # of batches that come as they are
_NO_TIMES = StageTimes(0, 0, 0)


class GroupReader:
    """See the module's text. `decoder` takes the place of the built-in one."""

    def __init__(self, port: str, decoder: Decoder | None = None) -> None:
        self.channel = Port(port).connect(_CONNECT_S)
        self._kept: Message | None = None  # of an epoch that is still to be begun here
        hello = Join(VERSION, "rank of a group", "epoch")
        self._subscription = Subscription(
            self.channel, hello, _MAX_KEPT, copy_on_device=False, decoder=decoder
        )

    def next(self, number: int) -> tuple[Note, Item] | EndNote:
        """The next batch of the epoch with this number, or its end.

        What can't be decoded is its item's `fault`. Raises `LoaderError` where the leader is gone.
        """
        while True:
            message = self._next_message()
            if isinstance(message, (EpochBegins, Batch, EpochEnds)) and message.epoch > number:
                self._kept = message  # the leader may leave an epoch before it says a word of it
                return EndNote({}, left=True)
            match message:
                case Batch(epoch=epoch, note=said):
                    note = unpacked(said)
                    assert isinstance(note, Note)
                    item = self._opened(message, note)
                    self._subscription.taken()
                    if epoch == number:
                        return note, item
                    del item  # of an epoch that was left
                case EpochEnds(epoch=epoch, note=said) if epoch == number:
                    end = unpacked(said)
                    assert isinstance(end, EndNote)
                    return end
                case Admit(report_every=report_every):
                    self._subscription.report_every = report_every
                case Dropped(reason=reason):
                    raise LoaderError(f"the rank of this group that has the workers: {reason}")
                case Ended():
                    return EndNote({}, left=True)
                case _:
                    pass  # an epoch's beginning, or the end of another one

    def _next_message(self) -> Message:
        kept, self._kept = self._kept, None
        if kept is not None:
            return kept
        try:
            return self._subscription.next_message()
        except ChannelClosedError:
            raise LoaderError(
                "the rank of this group that has the workers is gone: see its own error"
            ) from None

    def _opened(self, message: Batch, note: Note) -> Item:
        made = MadeBatch(0, note.nb_samples, _NO_TIMES, _OPENED, state=note.state)
        item = Item(note.worker, made)
        try:
            item.batch = self._subscription.open(message)
        except Exception as error:  # noqa: BLE001 - the training loop gets it, in order
            item.fault = error
        if note.report is not None:
            item.fault = revive(note.report, note.where)
        item.decoded = True
        item.decoded_at_s = item.on_device_at_s = time.perf_counter()
        return item

    def leave(self) -> None:
        """Want no more; batches that are held stay valid."""
        self._subscription.leave()

    def hang_up(self) -> None:
        """The same, without a word to the leader; whoever waits for it in another thread wakes."""
        self._subscription.lost()
        self.channel.close()
