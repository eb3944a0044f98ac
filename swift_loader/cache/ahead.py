"""Reading ahead: samples that are wanted soon and are not there are fetched before their batch.

For data sets that wait for I/O: those with coroutines, or with threads that fetch. A worker that
gets a batch number knows by the plan which numbers follow, whoever makes them. It fetches their
samples into the store; what is there, or on its way by anybody, it leaves alone. A sample that
raises is left to its batch, which says so in its turn.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from swift_loader.batch.asynchronous import Loop
from swift_loader.cache.client import Client, StoreGoneError, StoreSilentError, Use
from swift_loader.cache.kept import Writer
from swift_loader.cache.messages import TO_MAKE
from swift_loader.cache.naming import StoreName
from swift_loader.plan import Plan

__all__ = ["Ahead"]

_UNDER_WAY = 256
"""Samples that one worker fetches at a time by coroutines, until it has seen how large they are; by
threads, as many as there are."""
_FEWEST, _MOST = 32, 512
_UNDER_WAY_BYTES = 1 << 28
"""Then as many as this holds, between those two. Two workers that can handle 10,000 requests of 30
ms a second have 300 under way, and more while they are busy with what has come."""
_WRITTEN_AT_ONCE = 32


class Ahead:
    """Reads ahead for one worker. `want` and `begun` may be called from any thread.

    `fetch`: a coroutine function that gives the samples of keys, with `loop`; else a function that
    gives one sample, with `pool`, in which it is called.
    """

    def __init__(
        self,
        name: StoreName,
        consumer: int,
        dataset: Any,
        loop: Loop | None,
        pool: ThreadPoolExecutor | None,
        nb_threads: int,
    ) -> None:
        self._name = name
        self._consumer = consumer
        self._dataset = dataset
        self._loop = loop
        self._pool = pool
        self._most = _UNDER_WAY if loop is not None else nb_threads
        self._wanted: deque[tuple[list[int], Use]] = deque()
        self._lock = threading.Lock()
        self._under_way = 0
        self._seen = (-1, -1)  # epoch and batch: everything up to it was wanted
        self._now = (-1, -1)  # the batch that is made
        self._client: Client | None = None
        self._writer = Writer()
        self._writing = threading.Lock()  # of the client
        self._finished: deque[tuple[Use, int, Any, float]] = deque()  # fetched, to be written
        self._ending = threading.Lock()
        self._closed = False

    # ---- by the worker

    def want(self, plan: Plan, epoch: int, consumer: int, k: int, variant: int) -> None:
        """Batch `k` was ordered: its samples are wanted, and those of the batches after it."""
        far = k + 1 + max(1, 2 * self._most // plan.batch_size)
        seen_epoch, seen = self._seen
        first = max(k, seen + 1) if epoch == seen_epoch else k
        last = min(far, plan.nb_batches(consumer))
        if epoch < seen_epoch or first >= last:
            return
        self._seen = epoch, last - 1
        for number in range(first, last):
            keys = plan.batch(epoch, consumer, number).tolist()
            with self._lock:
                self._wanted.append((keys, Use(variant, epoch, number, consumer, ahead=True)))
        self._go_on()

    def begun(self, epoch: int, k: int) -> None:
        """The worker makes this batch now: nothing before it is wanted any more."""
        self._now = epoch, k

    def close(self) -> None:
        """Fetch nothing more. What is under way may end later; nobody waits for it."""
        self._closed = True
        with self._lock:
            self._wanted.clear()
        with self._writing:
            if self._client is not None:
                self._client.close()

    # ---- inside

    def _go_on(self) -> None:
        """Begin as many samples as may be under way."""
        while not self._closed:
            with self._lock:
                room = self._most - self._under_way
                while self._wanted and (self._wanted[0][1].epoch, self._wanted[0][1].k) < self._now:
                    self._wanted.popleft()
                if room <= 0 or not self._wanted:
                    return
                keys, use = self._wanted.popleft()
                if len(keys) > room:
                    self._wanted.appendleft((keys[room:], use))
                    keys = keys[:room]
                self._under_way += len(keys)
            mine = self._claimed(keys, use)
            with self._lock:
                self._under_way -= len(keys) - len(mine)
            if self._loop is not None and mine:
                self._loop.submit(self._fetched(mine, use))
            for key in mine if self._pool is not None and self._loop is None else ():
                assert self._pool is not None
                self._pool.submit(self._fetch_one, key, use)

    def _claimed(self, keys: list[int], use: Use) -> list[int]:
        """Those of `keys` that are for us to make."""
        try:
            with self._writing:
                client = self._connected()
                serial, rows = client.ask(np.array(keys, np.int64), use)
                client.done(serial)
        except StoreGoneError:
            return []
        return [key for key, row in zip(keys, rows[:, 0].tolist(), strict=True) if row == TO_MAKE]

    def _connected(self) -> Client:
        if self._closed:
            raise StoreGoneError("closed")
        if self._client is None or self._client.closed:
            if self._client is not None and self._client.silent:
                raise StoreSilentError
            self._client = Client(self._name, self._consumer)
        return self._client

    async def _fetched(self, keys: list[int], use: Use) -> None:
        many = getattr(self._dataset, "__getitems__", None)
        if callable(many):
            began_s = time.perf_counter()
            try:
                samples = list(await many(keys))
            except Exception:  # noqa: BLE001 - its batch will say so
                samples = []
            cost_s = (time.perf_counter() - began_s) / max(1, len(keys))
            good = samples if len(samples) == len(keys) else [_NOTHING] * len(keys)
            self._finished.extend((use, *each, cost_s) for each in zip(keys, good, strict=True))
            self._end()
            return
        await asyncio.gather(*(self._await_one(key, use) for key in keys))

    async def _await_one(self, key: int, use: Use) -> None:
        began_s = time.perf_counter()
        try:
            sample = await self._dataset[key]
        except Exception:  # noqa: BLE001 - its batch will say so
            sample = _NOTHING
        self._finished.append((use, key, sample, time.perf_counter() - began_s))
        if len(self._finished) == 1:  # others that end now are written together with it
            asyncio.get_running_loop().call_soon(self._end_some)

    def _fetch_one(self, key: int, use: Use) -> None:
        began_s = time.perf_counter()
        try:
            sample = self._dataset[key]
        except Exception:  # noqa: BLE001 - its batch will say so
            sample = _NOTHING
        self._finished.append((use, key, sample, time.perf_counter() - began_s))
        self._end()

    def _end_some(self) -> None:
        """Write a few of what has come, and let the loop run before the next few.

        Requests that began together end together. If all of them were written before others are
        begun, the processor would wait for the next ones, and these for the processor.
        """
        self._end_few()
        if self._finished and not self._closed:
            asyncio.get_running_loop().call_soon(self._end_some)

    def _end(self) -> None:
        """Write what has come, unless a thread is at that, which takes this along."""
        while self._finished and self._end_few():
            pass

    def _end_few(self) -> bool:
        """Write up to `_WRITTEN_AT_ONCE`, and begin as many others. False: a thread is at that."""
        if not self._ending.acquire(blocking=False):
            return False
        try:
            count = min(len(self._finished), _WRITTEN_AT_ONCE)
            came = [self._finished.popleft() for _ in range(count)]
            self._write(came)
        finally:
            self._ending.release()
        with self._lock:
            self._under_way -= len(came)
        self._go_on()
        return True

    def _write(self, came: list[tuple[Use, int, Any, float]]) -> None:
        by_use: dict[Use, list[tuple[int, Any, float]]] = {}
        for use, key, sample, cost_s in came:
            by_use.setdefault(use, []).append((key, sample, cost_s))
        try:
            with self._writing:
                client = self._client
                if client is None or client.closed:
                    return  # the store was killed; who needs the samples makes them
                for use, samples in by_use.items():
                    good = [(key, sample) for key, sample, _ in samples if sample is not _NOTHING]
                    bad = [key for key, sample, _ in samples if sample is _NOTHING]
                    if bad:
                        client.keep([(use.variant, key, 0, 0, 0) for key in bad])
                    mean_s = sum(cost_s for *_, cost_s in samples) / len(samples)
                    nbytes = self._writer.put(client, good, use, mean_s)
                    if self._loop is not None and nbytes:
                        fitting = _UNDER_WAY_BYTES * len(good) // nbytes
                        self._most = min(max(fitting, _FEWEST), _MOST)
        except StoreGoneError:
            pass  # the same


_NOTHING = object()
"""Stands for the sample that raised."""
