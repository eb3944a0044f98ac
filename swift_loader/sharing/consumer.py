"""`TensorConsumer`: the batches of a producer on this machine. Role: the consumer (a training)."""

from __future__ import annotations

import math
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from swift_loader.errors import (
    ClosedError,
    DroppedError,
    ProducerEndedError,
    ProducerGoneError,
    SharingError,
    refuse,
)
from swift_loader.sharing.cut import Cutter
from swift_loader.sharing.messages import (
    VERSION,
    Admit,
    Batch,
    Dropped,
    Ended,
    EpochBegins,
    EpochEnds,
    Join,
    Late,
    Message,
    Position,
)
from swift_loader.sharing.port import Port
from swift_loader.sharing.subscription import Subscription
from swift_loader.transport.channel import ChannelClosedError

__all__ = ["TensorConsumer"]

_END = object()

#: by address: the producer, and the epoch after the last one that this process has had whole
_had: dict[str, tuple[str, int]] = {}


class TensorConsumer(Iterator[Any]):
    """Iterates over what a `TensorProducer` publishes, an epoch each time.

    >>> for epoch in range(epochs):
    ...     for images, labels in TensorConsumer(port=5556, batch_size=32):
    ...         ...

    One consumer object for all epochs is better still: while it lives, the producer waits for it
    between epochs too, instead of going on without it.

    Tensors and arrays lie in the producer's memory, mapped copy-on-write: they are writable, what
    is written is private to this process, and costs it the pages that it touches. A batch may be
    kept for any time; past `max_kept` of them, batches are copied out. On a device, where nothing
    is copied on write, each batch is copied there once (`copy_on_device`).

    Parameters
    ----------
    port:
        The producer's number or name.
    ack_port, heart_ports:
        Accepted and without meaning: one socket does it all.
    unpack_fn:
        ``batch -> batch``, called on each batch of the producer, before it is cut.
    batch_size:
        Cut the stream into batches of this many samples, as views where a batch lies within one of
        the producer's. The epoch's last may be shorter. None: the producer's own batches.
    late:
        Coming when the epoch can't be had from its beginning any more: ``"epoch"`` waits for the
        next, ``"now"`` takes what is left of this one.
    connect_timeout:
        Seconds to wait for the producer to come up.
    reconnect:
        Seconds to wait for the return of a producer that died; None: an error at once. A producer
        that went on from its saved state goes on here too, without a gap and without repeating.
    name:
        For the producer's log and table. Default: the script's name.
    max_kept:
        Batches that may be held without being copied.
    copy_on_device:
        Where the producer shares on a CUDA device: copy each batch within the device's memory, on
        the current stream, so that it is private. False: tensors are views of what all consumers
        see, which nobody may write to.

    Raises
    ------
    ConfigError
        An argument is wrong.
    ProducerGoneError
        No producer came up; or, from ``next``, it died (`ProducerEndedError`: it has done all that
        it was to do).
    DroppedError
        From ``next``: this consumer held the others up for too long, or the loader raised.
    SharingError
        Another user listens there; or, from ``next``, a producer came back that has left out
        batches.
    """

    def __init__(
        self,
        port: int | str = 5555,
        ack_port: object = None,
        heart_ports: object = None,
        unpack_fn: Callable[[Any], Any] | None = None,
        batch_size: int | None = None,
        *,
        late: Late = "epoch",
        connect_timeout: float = 60.0,
        reconnect: float | None = None,
        name: str | None = None,
        max_kept: int = 16,
        copy_on_device: bool = True,
    ) -> None:
        _check(batch_size, late, max_kept)
        self._address = Port(port)
        self._unpack = unpack_fn
        self._batch_size = batch_size
        self._cutter = None if batch_size is None else Cutter(batch_size)
        self._late: Late = late
        self._reconnect_s = reconnect
        self._name = name or os.path.basename(sys.argv[0] or "python")
        self._max_kept = max_kept
        self._copy_on_device = copy_on_device
        self._identity = ""  # of the producer
        self._begins: EpochBegins | None = None  # the epoch at hand, or the one that follows
        self._position: Position | None = None  # of the batch that comes next
        self._in_epoch = False
        self._came_back = False  # the producer has, and has not shown yet where it stands
        self._rest_given = False
        self._failure: SharingError | None = None
        had = _had.get(self._address.path)
        hello = Join(VERSION, self._name, late)
        if had is not None:
            hello = Join(VERSION, self._name, late, had[0], Position(had[1], 0))
        self._connect(hello, connect_timeout)

    def _connect(self, hello: Join, wait_s: float) -> None:
        channel = self._address.connect(wait_s)
        try:
            self._subscription = Subscription(
                channel, hello, self._max_kept, copy_on_device=self._copy_on_device
            )
        except ChannelClosedError:
            channel.close()
            raise ProducerGoneError(f"the producer at {self._address} ends just now") from None
        self._finalizer = weakref.finalize(self, self._subscription.leave)

    # ---- iterating

    def __iter__(self) -> Iterator[Any]:
        """The epoch at hand: from its beginning, or where an earlier loop left off."""
        return self

    def __next__(self) -> Any:
        """The next batch. After the end of an epoch (`StopIteration`) comes the next epoch."""
        cutter = self._cutter
        if cutter is None:
            batch = self._next_batch()
            if batch is _END:
                raise StopIteration
            return batch
        if self._rest_given:
            self._rest_given = False
            raise StopIteration
        while not cutter.ready:
            batch = self._next_batch()
            if batch is _END:
                rest = cutter.take()
                if rest is None:
                    raise StopIteration
                self._rest_given = True
                return rest
            cutter.put(batch)
            del batch
        return cutter.take()

    def __len__(self) -> int:
        """Batches that this consumer gets in the epoch at hand, or else in the next one.

        Raises `TypeError` when the producer's loader can't tell.
        """
        begins = self._begins or self._first_facts()
        if self._batch_size is not None:
            if begins.nb_samples is None:
                raise TypeError(
                    "the producer does not know how many samples an epoch has: give it nb_samples="
                )
            return math.ceil(begins.nb_samples / self._batch_size)
        if begins.nb_batches is None:
            raise TypeError("the producer's loader has no length")
        return begins.nb_batches - begins.first

    def close(self) -> None:
        """Leave. Batches that are held stay valid. May be called again."""
        self._finalizer()

    def __enter__(self) -> TensorConsumer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- inside

    def _first_facts(self) -> EpochBegins:
        while self._begins is None:
            self._handle(self._message())
        return self._begins

    def _next_batch(self) -> Any:
        """A batch of the producer's, or `_END`."""
        while True:
            message = self._message()
            if type(message) is Batch:
                return self._on_batch(message)
            if self._handle(message) is _END:
                return _END

    def _message(self) -> Message:
        if self._failure is not None:
            raise self._failure
        if not self._finalizer.alive:
            raise ClosedError("this consumer is closed; build a new one to go on")
        while True:
            try:
                return self._subscription.next_message()
            except ChannelClosedError:
                self._lost()

    def _handle(self, message: Message) -> Any:
        """What is no batch; `_END` at the end of an epoch."""
        found: Any = None
        match message:
            case EpochBegins():
                found = self._on_begins(message)
            case EpochEnds(epoch=epoch, following=following):
                self._on_end(Position(epoch + 1, 0), following)
                found = _END
            case Admit():
                self._identity = message.producer
                self._subscription.report_every = message.report_every
                if self._position is None:
                    self._begins = message.begins
            case Dropped(reason=reason):
                self._fail(DroppedError(f"the producer at {self._address} dropped us: {reason}"))
            case Ended():
                self._fail(
                    ProducerEndedError(
                        f"the producer at {self._address} has ended: no epoch follows"
                    )
                )
            case _:
                raise TypeError(f"a producer does not send {type(message).__name__}")
        return found

    def _on_batch(self, message: Batch) -> Any:
        if self._came_back:
            self._check_gap(Position(message.epoch, message.k))
        self._position = Position(message.epoch, message.k + 1)
        self._in_epoch = True
        batch = self._subscription.open(message)
        self._subscription.taken()
        return batch if self._unpack is None else self._unpack(batch)

    def _on_begins(self, begins: EpochBegins) -> Any:
        found = None
        if self._came_back and self._position is not None and self._in_epoch:
            at, known = self._position, self._begins
            if begins.epoch == at.epoch and begins.first <= at.k:
                self._check_same_epoch(begins)
                return None
            if known is not None and at.k == known.nb_batches:
                self._on_end(Position(at.epoch + 1, 0), begins)  # only its end was lost
                found = _END
        if self._came_back:
            self._check_gap(Position(begins.epoch, begins.first))
        self._begins = begins
        self._position = Position(begins.epoch, begins.first)
        self._in_epoch = True
        return found

    def _on_end(self, position: Position, following: EpochBegins) -> None:
        self._position = position
        self._in_epoch = False
        self._begins = following
        _had[self._address.path] = self._identity, position.epoch

    def _check_gap(self, at: Position) -> None:
        """The producer came back: does it go on where we are?"""
        self._came_back = False
        here = self._position
        if here is not None and at != here:
            self._fail(
                SharingError(
                    f"the producer at {self._address} came back at batch {at.k} of epoch "
                    f"{at.epoch}, and this consumer stands before batch {here.k} of epoch "
                    f"{here.epoch}: resume the producer from a state it saved before that, or "
                    "join anew with another TensorConsumer"
                )
            )

    def _check_same_epoch(self, begins: EpochBegins) -> None:
        known = self._begins
        if known is not None and known.nb_batches != begins.nb_batches:
            self._fail(
                SharingError(
                    f"the producer at {self._address} came back with {begins.nb_batches} batches "
                    f"in epoch {begins.epoch} where there were {known.nb_batches}: it must be "
                    "resumed with the same loader; join anew with another TensorConsumer"
                )
            )

    def _lost(self) -> None:
        """The socket closed without a word."""
        self._leave_silently()
        at = self._position
        where = f", in epoch {at.epoch} before batch {at.k}" if at is not None else ""
        wait_s = self._reconnect_s
        if wait_s is None:
            self._fail(
                ProducerGoneError(
                    f"the producer at {self._address} died{where}: see its log. With "
                    "reconnect=seconds, its return is waited for"
                )
            )
        hello = Join(VERSION, self._name, self._late, self._identity, at, at is not None)
        try:
            self._connect(hello, wait_s)
        except ProducerGoneError as error:
            self._failure = error
            raise
        self._came_back = at is not None

    def _fail(self, error: SharingError) -> NoReturn:
        self._leave_silently()
        self._failure = error
        raise error

    def _leave_silently(self) -> None:
        self._finalizer.detach()
        self._subscription.lost()


def _check(batch_size: int | None, late: str, max_kept: int) -> None:
    if batch_size is not None and (
        isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1
    ):
        refuse("batch_size", batch_size, "give a number of samples, or None")
    if late not in ("epoch", "now"):
        refuse("late", late, "give 'epoch' or 'now'")
    if max_kept < 1:
        refuse("max_kept", max_kept, "give a number of batches, at least 1")
