"""Fetching the samples of a batch through the store: what is there is read, the rest is made.

Where there is no store (it was killed), everything is made as without one, and a new store is
started at the next batch. Where that fails, a warning comes once, and the next epoch tries again.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from swift_loader.batch.arena import Arena
from swift_loader.batch.fetch import Raised
from swift_loader.batch.patterns import pattern_of
from swift_loader.batch.stacked import stacked
from swift_loader.cache.client import Client, StoreGoneError, StoreSilentError, Use
from swift_loader.cache.messages import BUSY, DAMAGED, TO_MAKE, Rows
from swift_loader.cache.naming import StoreName
from swift_loader.cache.samples import Laid, Layer, rebuilt
from swift_loader.plan import Plan

__all__ = ["Kept", "Writer"]

_WAIT_S = 10.0
"""For a sample that another process makes; then it is made here too. Samples may be slow, but a
process that was stopped makes none."""
_FOR_GOOD = -2  # epochs are not negative; before the first, it is -1
_MOST_ORDERED = 16
_TOLD_AFTER = 16  # batches
_CHUNK_BYTES = 1 << 24

Make = Callable[[list[int]], list[Any]]


class Writer:
    """Puts samples into a store. For one thread."""

    def __init__(self) -> None:
        self._layer = Layer()
        self._said = False

    def put(self, client: Client, made: Sequence[tuple[int, Any]], use: Use, cost_s: float) -> int:
        """Keep samples of these keys, each of which took `cost_s`. Returns their bytes.

        Raises `StoreGoneError`.
        """
        cost_us = int(cost_s * 1e6)
        waiting: list[tuple[int, Laid]] = []
        nbytes = total = 0
        self._layer.clear()
        for key, sample in made:
            try:
                laid = self._layer.lay(sample)
            except Exception as error:  # noqa: BLE001 - the sample is used all the same
                self._say(error)
                client.keep([(use.variant, key, 0, 0, 0)])
                continue
            waiting.append((key, laid))
            nbytes += laid.nbytes
            total += laid.nbytes
            if nbytes > _CHUNK_BYTES:
                self._write(client, waiting, use, cost_us)
                self._layer.clear()
                waiting, nbytes = [], 0
        if waiting:
            self._write(client, waiting, use, cost_us)
        return total

    def _write(
        self, client: Client, waiting: list[tuple[int, Laid]], use: Use, cost_us: int
    ) -> None:
        about = (use.epoch, use.k, int(use.ahead))
        placed = client.room(
            [
                (use.variant, key, *about, laid.numbers, laid.skeleton, cost_us)
                for key, laid in waiting
            ]
        )
        rows = []
        for (key, laid), place in zip(waiting, placed.tolist(), strict=True):
            offset, segment, file_offset, is_there = place
            check = None
            if offset >= 0:
                client.write_memory(offset, laid.pieces, laid.nbytes, bool(is_there))
            if segment >= 0:
                check = client.write_file(segment, file_offset, laid.pieces, laid.nbytes)
            in_file = check is not None
            rows.append((use.variant, key, int(offset >= 0), int(in_file), check or 0))
        client.keep(rows)

    def _say(self, error: Exception) -> None:
        if not self._said:
            self._said = True
            warnings.warn(
                f"the cache can't keep a sample: {error}. It is made again each time",
                RuntimeWarning,
                stacklevel=4,
            )


class _Ordered(NamedTuple):
    plan: Plan | None
    use: Use
    keys: list[int]


class Kept:
    """The samples of one data set, for one consumer. For one thread.

    `copies`: code of the user's sees the samples. While a batch is collated, the store already
    looks for the samples of the next one that was ordered.
    """

    def __init__(self, name: StoreName, consumer: int, *, copies: bool) -> None:
        self.name = name
        self.consumer = consumer
        self._copies = copies
        self._plan: Plan | None = None
        self._client: Client | None = None
        self._writer = Writer()
        self._ordered: deque[_Ordered] = deque(maxlen=_MOST_ORDERED)
        self._looked: tuple[Client, Rows, Use, int] | None = None  # the answer is on its way
        self._asked: tuple[Client, Rows, Rows] | None = None  # by `gather`, for `fetch`
        self._looked_at: list[int] = []
        self._unasked = 0  # batches since the store was last asked or told
        self._given_up_in: int | None = None  # epoch, or `_FOR_GOOD`
        self._use = Use(0, -1, 0, consumer)

    def ordered(self, plan: Plan | None, use: Use, keys: list[int]) -> None:
        """A batch that is to be made after those that were ordered before."""
        self._ordered.append(_Ordered(plan, use, keys))

    def begin(self, plan: Plan | None, use: Use) -> None:
        """The samples that are fetched now are for this batch. `plan`: of ordinary epochs."""
        if self._client is not None and use.epoch != self._use.epoch:
            self._go_on(self._client)
        self._use, self._asked = use, None
        while self._ordered and self._ordered.popleft().use != use:
            pass
        if plan is not None and plan is not self._plan and plan != self._plan:
            self._plan = plan
            if self._client is not None and not self._client.closed:
                try:
                    self._client.follow(plan)
                except StoreGoneError:
                    self._client.close()

    def end(self) -> None:
        """The batch is made: nothing of it is looked at any more."""
        looked_at, self._looked_at = self._looked_at, []
        try:
            for serial in looked_at:
                if self._client is not None and not self._client.closed:
                    self._client.done_soon(serial)
        except StoreGoneError:
            self._looked_at = []

    def fetch(self, keys: list[int], make: Make) -> list[Any]:
        """The samples of `keys`, those that are not there by `make`, which gives `Raised` too."""
        samples: dict[int, Any] = {}
        try:
            client = self._connected()
            if client is not None:
                self._through(client, keys, make, samples)
        except StoreGoneError:
            self.end()
        missing = [key for key in dict.fromkeys(keys) if key not in samples]
        if missing:
            samples.update(zip(missing, make(missing), strict=True))
        return [samples[key] for key in keys]

    def gather(self, keys: list[int], arena: Arena) -> Any:
        """The batch of these, collated by default, straight out of the store.

        None where that can't be, as a sample isn't there or they aren't alike: `fetch` them then.
        """
        client = self._connected()
        if client is None:
            return None
        wanted = _different(keys)
        if len(wanted) == len(keys) and self._looked is None and not self._use.variant:
            batch = self._gathered_for_good(client, wanted, arena)
            if batch is not None:
                return batch
        rows = self._rows_of(client, wanted)
        self._asked = client, wanted, rows
        batch = _stacked(client, rows, arena) if len(wanted) == len(keys) else None
        if batch is not None:
            self._asked = None
            self._look_ahead(client)
        return batch

    def _gathered_for_good(self, client: Client, wanted: Rows, arena: Arena) -> Any:
        """The same without asking, of samples that lie where they are for good; else None."""
        tally, found = client.tally, client.directory.rows_of(wanted)
        if found is None or tally is None:
            return None
        rows, cost_us = found
        mark = arena.used_bytes
        batch = _stacked(client, rows, arena)
        if batch is None or not client.directory.holds:
            arena.rewind(mark)
            return None
        tally.add(len(rows), int(rows[:, 3:5].sum()), cost_us)
        self._unasked += 1
        if self._unasked == _TOLD_AFTER:
            self._go_on(client)
        return batch

    def _go_on(self, client: Client) -> None:
        """Tell the store how far this is."""
        unasked, self._unasked = self._unasked, 0
        if unasked:
            with suppress(StoreGoneError):  # it is found out again
                client.goes_on(self._use)

    def close(self) -> None:
        """Leave the store."""
        if self._client is not None:
            self._go_on(self._client)
            self._client.close()
            self._client = None

    # ---- inside

    def _connected(self) -> Client | None:
        if self._client is not None and not self._client.closed:
            return self._client
        if self._given_up_in in (self._use.epoch, _FOR_GOOD):
            return None
        try:
            if self._client is not None and self._client.silent:
                raise StoreSilentError
            self._client = Client(self.name, self.consumer, self._plan)
        except StoreGoneError as error:
            silent = isinstance(error, StoreSilentError)
            if self._given_up_in is None:
                until = "from now on" if silent else "until an epoch finds one"
                warnings.warn(
                    f"there is no cache: {error}. Samples are made each time, {until}",
                    RuntimeWarning,
                    stacklevel=4,
                )
            self._given_up_in = _FOR_GOOD if silent else self._use.epoch
            return None
        return self._client

    def _through(
        self, client: Client, keys: list[int], make: Make, samples: dict[int, Any]
    ) -> None:
        """Read or make all of `keys`; those that can't be had in time are left out."""
        wanted = _different(keys)
        rows = self._rows_of(client, wanted)
        nb_made = 0
        while True:
            to_make = self._read(client, wanted, rows, samples)
            if to_make:
                nb_made += len(to_make)
                self._make(client, to_make, make, samples)
            wanted = wanted[rows[:, 0] == BUSY]
            if not len(wanted):
                break
            found = client.wait(wanted, self._use, _WAIT_S)
            if found is None:
                return
            serial, rows = found
            self._looked_at.append(serial)
        if nb_made <= len(keys) // 2:
            self._look_ahead(client)

    def _rows_of(self, client: Client, wanted: Rows) -> Rows:
        """What the store says of these keys."""
        asked, self._asked = self._asked, None
        if asked is not None and asked[0] is client and np.array_equal(asked[1], wanted):
            return asked[2]
        rows = self._rows_looked_for(client, wanted)
        if rows is None:
            serial, rows = client.ask(wanted, self._use)
            self._looked_at.append(serial)
        return rows

    def _look_ahead(self, client: Client) -> None:
        """Have the store look for the next batch's samples. The last that is said for this one."""
        if self._ordered and self._ordered[0].plan == self._plan:
            _, use, keys = self._ordered[0]
            wanted = _different(keys)
            may_gather = not use.variant and client.tally is not None
            if may_gather and client.directory.rows_of(wanted) is not None:
                return
            self._looked = client, wanted, use, client.look(wanted, use)

    def _rows_looked_for(self, client: Client, wanted: Rows) -> Rows | None:
        """The answer to a `look`, where that was for this batch."""
        looked, self._looked = self._looked, None
        if looked is None or looked[0] is not client:
            return None
        _, keys, use, serial = looked
        rows = client.looked()
        if use != self._use or not np.array_equal(keys, wanted):
            client.done(serial)
            return None
        self._looked_at.append(serial)
        return rows

    def _read(self, client: Client, keys: Rows, rows: Rows, samples: dict[int, Any]) -> list[int]:
        """Read what is there; those that are to be made."""
        to_make = []
        for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
            if row[0] == TO_MAKE:
                to_make.append(key)
            elif row[0] != BUSY:
                data = client.bytes_at(row)
                if data is None:
                    client.keep([(self._use.variant, key, 0, 0, DAMAGED)])
                    to_make.append(key)
                else:
                    samples[key] = rebuilt(data, row[3], copy=self._copies)
        return to_make

    def _make(self, client: Client, keys: list[int], make: Make, samples: dict[int, Any]) -> None:
        began_s = time.perf_counter()
        kept = False
        try:
            made = make(keys)
            cost_s = (time.perf_counter() - began_s) / len(keys)
            pairs = list(zip(keys, made, strict=True))
            samples.update(pairs)
            good = [(key, sample) for key, sample in pairs if type(sample) is not Raised]
            bad = [key for key, sample in pairs if type(sample) is Raised]
            self._writer.put(client, good, self._use, cost_s)
            keys, kept = bad, not bad
        finally:
            if not kept and not client.closed:  # others need not wait for these
                client.keep([(self._use.variant, key, 0, 0, 0) for key in keys])


def _stacked(client: Client, rows: Rows, arena: Arena) -> Any:
    """The batch of samples that lie there; None where they aren't alike, or not there."""
    found = client.lying(rows)
    if found is None:
        return None
    skeleton, addresses = found
    pattern = pattern_of(skeleton)
    return None if pattern is None else stacked(pattern, addresses, arena)


def _different(keys: list[int]) -> Rows:
    """Each key once."""
    return np.array(list(dict.fromkeys(keys)), np.int64)
