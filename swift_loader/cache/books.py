"""The store's books: which sample is where, who makes it, who looks at it. Pure.

Events come in, answers go out; no socket, no memory, no clock. A key is ``(variant, number)``: what
a data set was told, and a sample's number.

States of a key:

```text
unknown ──Ask──▶ claimed by a client ──Room──▶ placed ──Keep──▶ there ──evicted──▶ unknown
                    │  ▲ the next that waits       │              │ Ask: pinned until Done
                    └──┘ Keep says no, or it died ◀┘              ▼
```

Only a client that owes no `Keep` waits, so nobody waits for ever: whoever is waited for makes its
samples first. What lies in memory is looked at only between `Ask` and `Done`; what is pinned stays.

What goes when there is no room. An epoch uses each sample once. So of an epoch that runs to its end
no rule gets more hits than there were samples at its beginning, and throwing one out for another is
work for nothing: the same part stays for good. It pays where epochs end early, as the plan says
which samples come before that end: a sample that the next epoch reaches takes the place of one
that it doesn't reach, or that it reaches much later. And a sample that is read ahead takes the
place of the one that is wanted last, if that is wanted later.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from swift_loader.cache.extents import Extents
from swift_loader.cache.farthest import Farthest
from swift_loader.cache.files import Index, Record
from swift_loader.cache.held import Client, Counts, Key, Sample, Waiting, is_busy, is_free
from swift_loader.cache.messages import (
    BUSY,
    DAMAGED,
    IN_FILE,
    IN_MEMORY,
    LOOKING,
    TO_MAKE,
    UNPLANNED,
    Answer,
    Ask,
    Keep,
    Placed,
    Room,
    Rows,
)
from swift_loader.cache.schedule import NEVER, Reach, Schedule
from swift_loader.plan import Plan
from swift_loader.telemetry.cache_stats import CacheStats

__all__ = ["Books", "Freed", "Reply"]

_OWN_BYTES = 256
"""What the books themselves take for a sample, about; it counts."""


class Reply(NamedTuple):
    """To be sent to a client."""

    client: int
    message: Answer


class Freed(NamedTuple):
    """Pages of the memory that nothing lies on any more."""

    start: int
    nbytes: int


class Books:
    """See the module's text. `memory`: the bound, in bytes; 0: nothing is kept in memory."""

    def __init__(self, memory: int, span: int, page: int, index: Index | None = None) -> None:
        self._memory = memory
        self._extents = Extents(span, page)
        self._index = index
        self._samples: dict[Key, Sample] = {}
        self._order: Farthest[Key] = Farthest()  # what is in memory
        self._clients: dict[int, Client] = {}
        self._course: Plan | None = None
        self._schedule = Schedule(None)
        self._variant = 0
        self._variant_since = -1  # epoch
        self._reach = Reach(0)
        self._counts: defaultdict[int, Counts] = defaultdict(Counts)
        self._is_short = False  # while there is room for all, nobody needs to know what may go
        self._kept = self._evicted = self._refused = 0
        self.freed: list[Freed] = []
        self.written: list[Record] = []
        for record in index.records if index is not None else ():
            sample = Sample((0, record.key), record.numbers, record.skeleton, record.cost_us)
            check = record.check if record.doubtful else -1
            sample.file = record.segment, record.offset, check
            self._samples[sample.key] = sample

    # ---- clients

    def enter(self, client: int, consumer: int) -> None:
        """A client is there."""
        self._clients[client] = Client(consumer)

    def leave(self, client: int) -> list[Reply]:
        """It is gone, however that came: others make what it was at."""
        gone = self._clients.pop(client)
        for waiting in gone.waiting.values():
            waiting.over = True
        for pinned in gone.pinned.values():
            self._unpin(pinned)
        left = [self._samples[key] for key in sorted(gone.made)]
        for sample in left:
            self._drop_placed(sample)
            sample.maker = None
        return [reply for sample in left for reply in self._released(sample)]

    def follow(self, plan: Plan) -> None:
        """Epochs go by this plan from now on."""
        if plan != self._course:
            self._course = plan
            self._schedule = Schedule(plan)
            self._reach = Reach(self._schedule.steps)
            self._forget_times()  # until they are asked for again

    # ---- asking

    def ask(self, client: int, ask: Ask) -> Answer:
        """Where the keys are, now. Those that nobody has or makes are the client's to make, unless
        it only looks.
        """
        me, claims = self._clients[client], ask.how != LOOKING
        if ask.done:
            self.done(client, ask.done)
        self._note_epoch(ask)
        counts = self._counts[ask.consumer]
        pinned: list[Sample] = []
        table: list[int] = []  # row after row
        variant, known = ask.variant, self._samples
        for number in ask.keys.tolist():
            key = variant, number
            sample = known.get(key)
            if sample is None:
                if not claims:
                    table += BUSY, -1, -1, 0, 0, -1
                    continue
                sample = known[key] = Sample(key)
            if sample.there:
                if not ask.ahead:
                    sample.pins += 1
                    pinned.append(sample)
                table += IN_MEMORY, -1, sample.offset, sample.numbers, sample.skeleton, -1
            elif sample.file is not None:
                segment, offset, check = sample.file
                if not ask.ahead:
                    counts.hit(sample)
                    counts.disk_hits += 1
                table += IN_FILE, segment, offset, sample.numbers, sample.skeleton, check
            elif sample.maker is None and claims:
                sample.maker = client
                me.made.add(key)
                counts.misses += 1
                table += TO_MAKE, -1, -1, 0, 0, -1
            else:
                table += BUSY, -1, -1, 0, 0, -1
        if pinned:
            counts.hits += len(pinned)
            counts.hit_bytes += sum([each.numbers + each.skeleton for each in pinned])
            counts.saved_us += sum([each.cost_us for each in pinned])
            me.pinned.setdefault(ask.serial, []).extend(pinned)
            if self._is_short:
                for sample, time in zip(pinned, self._times(ask, pinned), strict=True):
                    self._order.put(sample.key, time)
        return Answer(ask.serial, np.array(table, np.int64).reshape(-1, 6))

    def wait(self, client: int, ask: Ask) -> list[Reply]:
        """Answer `ask` now if that can be, else later."""
        waiting = Waiting(client, ask)
        found = [self._samples.get((ask.variant, key)) for key in ask.keys.tolist()]
        if any(sample is None or is_free(sample) for sample in found) or not any(
            sample is not None and is_busy(sample) for sample in found
        ):
            return [self._answered(waiting)]
        self._clients[client].waiting[ask.serial] = waiting
        for sample in found:
            if sample is not None and is_busy(sample):
                sample.waits.append(waiting)
        return []

    def done(self, client: int, serial: int) -> None:
        """The client looks at nothing of `serial` any more, and doesn't wait for it."""
        me = self._clients[client]
        waiting = me.waiting.pop(serial, None)
        if waiting is not None:
            waiting.over = True
        self._unpin(me.pinned.pop(serial, ()))

    # ---- keeping

    def room(self, client: int, room: Room) -> Placed:
        """Where the client may write samples that it has made. Raises `OSError` of the files."""
        me = self._clients[client]
        placed = []
        rows = room.rows.tolist()
        for row, time in zip(rows, self._times_of_new(rows), strict=True):
            variant, number, _, _, ahead, numbers, skeleton, cost_us = row
            key = variant, number
            sample = self._samples.get(key)
            if sample is None:
                sample = self._samples[key] = Sample(key)
            if sample.offset >= 0 or sample.maker not in (None, client):
                placed.append((-1, -1, -1))  # somebody else has been faster
                continue
            sample.maker = client
            me.made.add(key)
            sample.numbers, sample.skeleton = numbers, skeleton
            sample.cost_us = max(sample.cost_us, cost_us)
            extent = sample.extent
            start = self._room_for(extent, time if ahead else self._may_go_after(time))
            if start is not None:
                self._extents.take(start, extent)
                sample.offset = start
                self._order.put(key, time)
                sample.pins += 1  # until it is written
            else:
                self._refused += 1
            if self._index is not None and sample.file is None and not variant:
                sample.placed_in = self._index.place(numbers + skeleton)
            placed.append((sample.offset, *(sample.placed_in or (-1, -1))))
        return Placed(room.serial, np.array(placed, np.int64).reshape(-1, 3))

    def keep(self, client: int, keep: Keep) -> list[Reply]:
        """What was placed is written, or isn't; `written` has what the index is to be told."""
        me = self._clients[client]
        samples = []
        for variant, number, in_memory, in_file, check in keep.rows.tolist():
            sample = self._samples.get((variant, number))
            if sample is None:
                continue
            if check == DAMAGED:
                sample.file = None
                continue
            if sample.maker != client:
                continue
            me.made.discard(sample.key)
            sample.maker = None
            if in_file and sample.placed_in is not None:
                segment, offset = sample.placed_in
                sample.file, sample.placed_in = (segment, offset, -1), None
                self.written.append(
                    Record(number, segment, offset, sample.numbers, sample.skeleton,
                           min(sample.cost_us, 2**32 - 1), check)
                )  # fmt: skip
            if in_memory and sample.offset >= 0:
                sample.there = True
                sample.pins -= 1
                self._kept += 1
            self._drop_placed(sample)
            samples.append(sample)
        return [reply for sample in samples for reply in self._released(sample)]

    def figures(self, consumer: int) -> CacheStats:
        """How it is going."""
        counts, index = self._counts[consumer], self._index
        return CacheStats(
            counts.hits,
            counts.misses,
            counts.disk_hits,
            counts.hit_bytes,
            counts.saved_us * 1e-6,
            self._kept,
            self._evicted,
            self._refused,
            self._used,
            self._memory,
            index.used if index is not None else 0,
            index.size if index is not None else None,
        )

    # ---- inside

    @property
    def _used(self) -> int:
        return self._extents.resident + _OWN_BYTES * len(self._order)

    def _note_epoch(self, ask: Ask) -> None:
        """Once an epoch: what was not used in its time has another one."""
        if ask.variant != self._variant and ask.epoch > self._variant_since:
            self._forget_times()
            self._variant, self._variant_since = ask.variant, ask.epoch
        if ask.ahead or not self._schedule.steps:
            return
        reach = self._reach
        if not reach.note(ask.epoch, ask.k) or not self._is_short:
            return
        # Consumers may be an epoch apart: what the one before may still use is left as it is.
        begin = self._schedule.time(ask.epoch - 1, 0)
        known = begin + reach.batches if reach.has_changed else math.inf
        stale = self._order.outside(begin, known)
        times = self._after(np.array([number for _, number in stale], np.int64), ask.epoch - 1)
        for key, time in zip(stale, times.tolist(), strict=True):
            self._order.put(key, time if key[0] == self._variant else NEVER)

    def _times(self, ask: Ask, samples: list[Sample]) -> list[int]:
        """When each of these is wanted again after this."""
        if ask.epoch == UNPLANNED or ask.variant != self._variant or not self._schedule.steps:
            return [NEVER] * len(samples)
        numbers = np.array([sample.key[1] for sample in samples], np.int64)
        found: list[int] = self._after(numbers, ask.epoch).tolist()
        return found

    def _forget_times(self) -> None:
        for key in self._order.outside(NEVER):
            self._order.put(key, NEVER)

    def _fall_short(self) -> None:
        """Room is scarce from now on: know when each sample is wanted, as if it always had been."""
        self._is_short = True
        epoch, deepest = self._reach.epoch, self._reach.deepest
        if epoch < 0:
            return
        keys = [key for key in self._order.outside(NEVER + 1) if key[0] == self._variant]
        numbers = np.array([number for _, number in keys], np.int64)
        wanted = self._after(numbers, epoch - 1)
        used = wanted < self._schedule.time(epoch, deepest)
        wanted[used] = self._after(numbers[used], epoch)
        for key, time in zip(keys, wanted.tolist(), strict=True):
            self._order.put(key, time)

    def _after(self, numbers: Rows, epoch: int) -> Rows:
        """When these are wanted next after their use in `epoch`, by epochs as long as the last."""
        return self._schedule.after(numbers, epoch, self._reach.batches)

    def _times_of_new(self, rows: list[list[int]]) -> list[int]:
        """When each sample of these rows of `Room`, all for one batch, is wanted next."""
        if not rows:
            return []
        variant, _, epoch, k, ahead, *_ = rows[0]
        if epoch == UNPLANNED or variant != self._variant or not self._schedule.steps:
            return [NEVER] * len(rows)
        if ahead:
            return [self._schedule.time(epoch, k)] * len(rows)
        numbers = np.array([row[1] for row in rows], np.int64)
        found: list[int] = self._after(numbers, epoch).tolist()
        return found

    def _may_go_after(self, time: int) -> int:
        """What is wanted after this may go for a sample that is wanted at `time`.

        That is what the epoch of `time` doesn't reach, and where epochs end early, what is wanted
        most of an epoch later: its place is free again by then.
        """
        steps, reach = self._schedule.steps, self._reach.batches
        if time == NEVER or not steps:
            return NEVER
        end = self._schedule.time(time // steps, reach)
        return end if reach == steps else min(end, time + reach * 3 // 4)

    def _room_for(self, nbytes: int, time: int) -> int | None:
        """Where so many bytes fit, once what is wanted after `time` may go."""
        if not 0 < nbytes <= self._memory - _OWN_BYTES:
            return None
        while True:
            start = self._extents.hole(nbytes)
            if start is None:
                return None
            missing = self._used + self._extents.cost(start, nbytes) + _OWN_BYTES - self._memory
            if missing <= 0:
                return start
            if not self._is_short:
                self._fall_short()
            victims, found = [], 0
            order = self._order.later_than(time)
            for key in order:
                sample = self._samples[key]
                if not sample.pins:
                    victims.append(sample)
                    found += sample.extent + _OWN_BYTES
                    if found >= missing:
                        break
            order.close()
            if found < missing:
                return None
            for sample in victims:
                self._evict(sample)
                self._evicted += 1

    def _evict(self, sample: Sample) -> None:
        freed = self._extents.give(sample.offset, sample.extent)
        if freed is not None:
            self.freed.append(Freed(*freed))
        self._order.remove(sample.key)
        sample.offset, sample.there = -1, False
        self._forget(sample)

    def _forget(self, sample: Sample) -> None:
        if is_free(sample) and not sample.waits:
            self._samples.pop(sample.key, None)

    def _unpin(self, samples: list[Sample] | tuple[()]) -> None:
        for sample in samples:
            sample.pins -= 1

    def _drop_placed(self, sample: Sample) -> None:
        """What was placed and isn't written has no place any more."""
        sample.placed_in = None
        if sample.offset >= 0 and not sample.there:
            sample.pins -= 1
            self._evict(sample)

    def _released(self, sample: Sample) -> list[Reply]:
        """Its maker is done with `sample`: answer those that can go on."""
        waits, sample.waits = sample.waits, []
        replies = []
        for waiting in waits:
            if waiting.over:
                continue
            keys = waiting.ask.keys.tolist()
            variant = waiting.ask.variant
            found = [self._samples.get((variant, key)) for key in keys]
            free = any(each is None or is_free(each) for each in found)
            busy = any(each is not None and is_busy(each) for each in found)
            if free or not busy:
                waiting.over = True
                self._clients[waiting.client].waiting.pop(waiting.ask.serial, None)
                replies.append(self._answered(waiting))
            else:
                for each in found:
                    if each is not None and is_busy(each) and waiting not in each.waits:
                        each.waits.append(waiting)
        self._forget(sample)
        return replies

    def _answered(self, waiting: Waiting) -> Reply:
        return Reply(waiting.client, self.ask(waiting.client, waiting.ask))
