"""One epoch of a loader, as the training loop sees it."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from swift_loader.errors import ClosedError, WorkerError
from swift_loader.loader.bar import Bar
from swift_loader.loader.delivering import Delivering
from swift_loader.loader.static_buffers import StaticBuffers
from swift_loader.order.part import UNKNOWN, EpochPart, Number, Taken
from swift_loader.pipeline.item import Item
from swift_loader.pipeline.staging import Stager
from swift_loader.ranks.equal_steps import EqualSteps
from swift_loader.ranks.exchange import Word
from swift_loader.telemetry.metrics import BatchTimes, Meter
from swift_loader.telemetry.ranges import WAIT, profiled, ranged
from swift_loader.telemetry.trace import TraceWriter

__all__ = ["EpochIterator", "Standing", "gone_on"]


_MANY_BEYOND = 64
CountSources = Callable[[Number, float], None]
"""Counts what a delivered batch holds of each source; takes the seconds that it was waited for."""

_Ready = tuple[Number, Item, Any, float]  # what it is, its batch, seconds to the device


class Standing:
    """Where the training loop stands in a part of an epoch.

    The loader keeps this and not the iterator, which keeps the loader: so both are freed, and all
    that they hold is closed, as soon as nobody has them.
    """

    def __init__(self, taken: Taken) -> None:
        self.taken = taken
        self.ends: dict[int, bytes] = {}  # how a stream stands at its end, by worker
        self.said_size: int | None = None  # what `len()` gave for a stream
        self.look_at = _MANY_BEYOND  # batches taken out of order: some before them may never come
        self.ended = False  # `StopIteration` was raised
        self.overtaken = False  # by a later iterator, or a loaded state
        self.count_sources: CountSources | None = None  # of a mixture
        self.cut: Callable[[Any], Any] | None = None  # takes this rank's part of a batch

    def compare_size(self) -> None:
        """Warn, once, where a stream gives more batches than its length says."""
        assert self.said_size is not None
        taken = self.taken.first - self.taken.part.first + len(self.taken.beyond)
        if taken > self.said_size:
            warnings.warn(
                f"len() of the loader was {self.said_size} batches, by the length that the stream "
                f"gives, and {taken} have come: its __len__ is too small, or several workers have "
                "a short last batch each",
                stacklevel=3,
            )
            self.said_size = None

    @property
    def alive(self) -> bool:
        """Whether this is what the loader is at."""
        return not self.ended and not self.overtaken


def gone_on(before: Standing | None, taken: Taken) -> Taken:
    """At the beginning of a part, where a stream stands as the epoch `before` has left it."""
    if (
        before is not None
        and before.ended
        and not before.overtaken
        and before.taken.part.epoch + 1 == taken.part.epoch
    ):
        taken.shards.update(before.ends)
    return taken


class EpochIterator(Iterator[Any]):
    """Yields the batches of one part of an epoch, and counts what was delivered.

    `owner` is held so that a loader lives as long as somebody iterates it.
    """

    def __init__(
        self,
        pipeline: Delivering,
        stager: Stager | None,
        meter: Meter,
        trace: TraceWriter | None,
        standing: Standing,
        equal_steps: EqualSteps | None,
        buffers: StaticBuffers | None,
        owner: Any,
        bar: Bar | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._stager = stager
        self._meter = meter
        self._trace = trace
        self._standing = standing
        self._equal_steps = equal_steps
        self._buffers = buffers
        self._held: _Ready | None = None  # the others were told of it
        self._fault: Exception | None = None  # instead of the next batch
        self._looked: list[_Ready | Exception | None] = []  # what `has_next` has found comes next
        self._looked_s = 0.0  # how long the loop waited for that
        self._lock = threading.RLock()  # two threads may iterate: each batch comes once
        self._owner = owner
        self._bar = bar

    @property
    def part(self) -> EpochPart:
        """What it iterates."""
        return self._standing.taken.part

    def __len__(self) -> int:
        return self._standing.taken.part.size

    @property
    def has_next(self) -> bool:
        """Whether another batch comes, or an error in its place. It does not count as taken yet.

        Where nobody can tell how long the epoch is, this waits for the next batch.
        """
        with self._lock:
            standing = self._standing
            if not standing.alive:
                return False
            if standing.taken.part.count != UNKNOWN:
                return standing.taken.left > 0
            if not self._looked:
                began_s = time.perf_counter()
                try:
                    self._looked.append(self._found())
                except Exception as error:  # noqa: BLE001 - raised in its turn
                    self._looked.append(error)
                self._looked_s += time.perf_counter() - began_s
            return self._looked[0] is not None

    def __reduce__(self) -> NoReturn:
        raise NotImplementedError(  # as of torch's
            "an iterator over a loader can't be pickled or copied: pickle or copy the loader, and "
            "give it the state_dict() of this one, if it should go on from here"
        )

    def __next__(self) -> Any:
        with self._lock:
            return self._take()

    def _take(self) -> Any:
        standing = self._standing
        if standing.ended:
            raise StopIteration
        if standing.overtaken:
            self._check_alive()
        began_s, self._looked_s = time.perf_counter() - self._looked_s, 0.0
        depth = self._pipeline.depth if self._stager is None else self._stager.depth
        if profiled():
            with ranged(WAIT):
                found = self._found()
        else:
            found = self._found()
        if found is None:
            self._check_alive()  # it may have been left in the meantime, by another thread
            self._end(began_s)
        number, item, batch, to_device_s = found
        standing.taken.add(number.k)
        if len(standing.taken.beyond) >= standing.look_at:
            self._pass_over()
        if item.fault is not None:
            raise _said(item.fault, number)  # the loop may go on: its batch counts as taken
        if standing.said_size is not None:
            standing.compare_size()
        if item.made is not None and item.made.state:
            standing.taken.shards[item.worker] = item.made.state
        self._count(number, item, depth, to_device_s, began_s)
        if self._equal_steps is not None and self._next_is_ready:
            self._offer(self._equal_steps)
        if standing.cut is not None:
            batch = standing.cut(batch)
        return batch if self._buffers is None else self._buffers.filled(batch)

    def _pass_over(self) -> None:
        standing = self._standing
        over = self._pipeline.shards_over(standing.taken.part.epoch)
        if over is not None:
            standing.taken.pass_over(over)
        standing.look_at = max(_MANY_BEYOND, 2 * len(standing.taken.beyond))

    def _found(self) -> _Ready | None:
        if self._looked:
            found = self._looked.pop()
            if isinstance(found, Exception):
                raise found
            return found
        return self._next() if self._equal_steps is None else self._agreed(self._equal_steps)

    def _check_alive(self) -> None:
        if self._standing.overtaken:
            raise ClosedError(
                "another iteration of the same loader has begun, or a state was loaded: that ends "
                "the one before, other than with torch's DataLoader. Build a second loader "
                "(loader.with_options()) to iterate twice at once"
            )

    @property
    def _next_is_ready(self) -> bool:
        """Whether `_next` would not wait."""
        return self._pipeline.next_is_ready if self._stager is None else self._stager.depth > 0

    def _next(self) -> _Ready | None:
        """What this consumer has next, None at the end of its shards."""
        if self._stager is None:
            found = self._pipeline.next(self._standing.taken.part)
            if found is None:
                return None
            number, item = found
            batch, item.batch = item.batch, None
            return number, item, batch, 0.0
        staged = self._stager.next()
        if staged is None:
            return None
        assert staged.number is not None
        assert staged.item is not None
        return staged.number, staged.item, staged.batch, staged.to_device_s

    def _offer(self, steps: EqualSteps) -> None:
        """Take the next batch, and tell the others; an error waits for its turn."""
        try:
            self._held = self._next()
        except Exception as error:  # noqa: BLE001 - raised in its turn
            self._fault = error
            return
        if self._held is None or self._held[1].fault is None:
            steps.say(Word.ENDED if self._held is None else Word.HAS_BATCH)

    def _agreed(self, steps: EqualSteps) -> _Ready | None:
        """The next batch if all consumers have one."""
        if not steps.said and self._fault is None and self._held is None:
            self._offer(steps)
        if self._fault is not None:
            fault, self._fault = self._fault, None
            steps.fail(fault)
            raise fault
        held, self._held = self._held, None
        if held is not None and held[1].fault is not None:
            steps.fail(held[1].fault)
            return held
        return held if steps.all_have() else None

    def _count(
        self, number: Number, item: Item, depth: int, to_device_s: float, began_s: float
    ) -> None:
        now_s = time.perf_counter()
        made = item.made
        assert made is not None
        fetch_s, collate_s, encode_s, slowest_s, slowest = made.times
        times = BatchTimes(  # by position: names cost three times as much
            item.worker,
            number.epoch,
            number.k,
            made.nb_samples,
            made.parcel.nbytes,
            fetch_s,
            collate_s,
            encode_s,
            item.decode_s,
            to_device_s,
            now_s - began_s,
            depth,
            now_s,
        )
        self._meter.add(times)
        if self._bar is not None:
            self._bar.step()
        if slowest >= 0:
            self._meter.took(slowest, slowest_s)
        if self._standing.count_sources is not None:
            self._standing.count_sources(number, times.wait_s)
        self._pipeline.loop_waited(times.wait_s, now_s)
        if self._trace is not None:
            self._trace.batch(
                times,
                made_at_s=made.made_at_s,
                decoded_at_s=item.decoded_at_s,
                on_device_at_s=item.on_device_at_s,
            )

    def _end(self, at_s: float) -> NoReturn:
        standing = self._standing
        standing.ended = True
        standing.ends = self._pipeline.shard_ends(standing.taken.part.epoch)
        self._meter.epoch_ends(at_s)
        if self._bar is not None:
            self._bar.close()
        raise StopIteration


def _said(fault: BaseException, number: Number) -> BaseException:
    """`fault`, or what stands for a `StopIteration`, which would end the loop in silence."""
    if not isinstance(fault, StopIteration):
        return fault
    error = WorkerError(
        f"batch {number.k} of epoch {number.epoch}: StopIteration: {fault}. Code of the data set, "
        "or a function that was given, has raised it, for example by next() without a default"
    )
    error.__cause__ = fault
    return error
