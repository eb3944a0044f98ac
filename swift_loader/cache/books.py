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

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from swift_loader.cache.extents import Extents, extent_of
from swift_loader.cache.files import Index, Record
from swift_loader.cache.held import Client, Counts, Key, Sample, Waiting, is_busy, is_free
from swift_loader.cache.messages import (
    BUSY,
    DAMAGED,
    IN_FILE,
    IN_MEMORY,
    LOOKING,
    TO_MAKE,
    Answer,
    Ask,
    Keep,
    Placed,
    Room,
)
from swift_loader.cache.schedule import NEVER
from swift_loader.cache.wanted import Wanted
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
        self._wanted = Wanted()
        self._order = self._wanted.order
        self._clients: dict[int, Client] = {}
        self._counts: defaultdict[int, Counts] = defaultdict(Counts)
        self._kept = self._evicted = self._refused = 0
        self.freed: list[Freed] = []
        self.written: list[Record] = []
        self.settled: list[tuple[int, int, int, int, int]] = []  # see `Directory.note`
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
        self._wanted.follow(plan)

    # ---- asking

    def ask(self, client: int, ask: Ask) -> Answer:
        """Where the keys are, now. Those that nobody has or makes are the client's to make, unless
        it only looks.
        """
        me, claims = self._clients[client], ask.how != LOOKING
        if ask.done:
            self.done(client, ask.done)
        self._wanted.note(ask)
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
            if self._wanted.is_short:
                for sample, time in zip(pinned, self._wanted.times(ask, pinned), strict=True):
                    self._order.put(sample.key, time)
        return Answer(ask.serial, np.array(table, np.int64).reshape(-1, 6))

    def goes_on(self, client: int, ask: Ask) -> None:
        """A client has come so far without asking."""
        if ask.done:
            self.done(client, ask.done)
        self._wanted.note(ask)

    @property
    def is_short(self) -> bool:
        """Whether there is not room for all: then samples may go."""
        return self._wanted.is_short

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

    def blocks_for(self, room: Room) -> list[int]:
        """Where blocks begin that are worth making whole before `room` is given.

        None once room is scarce: what lies there then is given back page by page.
        """
        if self._wanted.is_short:
            return []
        nbytes = sum(map(extent_of, (room.rows[:, 5] + room.rows[:, 6]).tolist()))
        return self._extents.blocks_for(nbytes, self._memory - self._used)

    def made_whole(self, block: int) -> None:
        """One of them is there."""
        self._extents.made_whole(block)

    def room(self, client: int, room: Room) -> Placed:
        """Where the client may write samples that it has made. Raises `OSError` of the files."""
        me = self._clients[client]
        rows = room.rows.tolist()
        samples: list[Sample | None] = []
        for variant, number, _, _, _, numbers, skeleton, cost_us in rows:
            key = variant, number
            sample = self._samples.get(key)
            if sample is None:
                sample = self._samples[key] = Sample(key)
            if sample.offset >= 0 or sample.maker not in (None, client):
                samples.append(None)  # somebody else has been faster
                continue
            sample.maker = client
            me.made.add(key)
            sample.numbers, sample.skeleton = numbers, skeleton
            sample.cost_us = max(sample.cost_us, cost_us)
            samples.append(sample)
        whole = 0  # up to here it is better to write through the mapping
        if self._place_run([sample for sample in samples if sample is not None]):
            whole = self._extents.whole
        else:
            self._place_each(samples, rows)
        table: list[int] = []
        for sample in samples:
            if sample is None:
                table += -1, -1, -1, 0
                continue
            if self._index is not None and sample.file is None and not sample.key[0]:
                sample.placed_in = self._index.place(sample.numbers + sample.skeleton)
            table += sample.offset, *(sample.placed_in or (-1, -1)), int(0 <= sample.offset < whole)
        return Placed(room.serial, np.array(table, np.int64).reshape(-1, 4))

    def _place_run(self, samples: list[Sample]) -> bool:
        """Place these one after the other, if there is room for all."""
        sizes = [sample.extent for sample in samples]
        nbytes = sum(sizes)
        start = None if self._wanted.is_short or not nbytes else self._extents.hole(nbytes)
        if start is None:
            return False
        own = _OWN_BYTES * len(sizes)
        if self._used + self._extents.cost(start, nbytes) + own > self._memory:
            return False
        self._extents.take_run(start, sizes)
        for sample, size in zip(samples, sizes, strict=True):
            self._placed(sample, start, NEVER)  # nobody needs to know yet
            start += size
        return True

    def _place_each(self, samples: list[Sample | None], rows: list[list[int]]) -> None:
        """Find room for each of these; others may go for it."""
        ahead = bool(rows and rows[0][4])
        for sample, time in zip(samples, self._wanted.times_of_new(rows), strict=True):
            if sample is None:
                continue
            start = self._room_for(
                sample.extent, time if ahead else self._wanted.may_go_after(time)
            )
            if start is None:
                self._refused += 1
                continue
            self._extents.take_run(start, (sample.extent,))
            self._placed(sample, start, time)

    def _placed(self, sample: Sample, start: int, time: int) -> None:
        sample.offset = start
        self._order.put(sample.key, time)
        sample.pins += 1  # until it is written

    def keep(self, client: int, keep: Keep) -> list[Reply]:
        """What was placed is written, or isn't; `written` has what the index is to be told, and
        `settled` what the directory is.
        """
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
                if not variant and number >= 0 and not self._wanted.is_short:
                    place = sample.offset, sample.numbers, sample.skeleton
                    self.settled.append((number, *place, sample.cost_us))
            if not sample.there:
                self._drop_placed(sample)
            sample.placed_in = None
            if sample.waits or not sample.there:
                samples.append(sample)
        return [reply for sample in samples for reply in self._released(sample)]

    def figures(self, consumer: int, unasked: tuple[int, int, int] = (0, 0, 0)) -> CacheStats:
        """How it is going. `unasked`: see `Tallies.of`."""
        counts, index = self._counts[consumer], self._index
        hits, hit_bytes, saved_us = unasked
        return CacheStats(
            counts.hits + hits,
            counts.misses,
            counts.disk_hits,
            counts.hit_bytes + hit_bytes,
            (counts.saved_us + saved_us) * 1e-6,
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
            if not self._wanted.is_short:
                self._wanted.fall_short()
                self._give_back(self._extents.give_ready())
                continue
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
        self._give_back(self._extents.give(sample.offset, sample.extent))
        self._order.remove(sample.key)
        sample.offset, sample.there = -1, False
        self._forget(sample)

    def _give_back(self, freed: tuple[int, int] | None) -> None:
        if freed is not None:
            self.freed.append(Freed(*freed))

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
