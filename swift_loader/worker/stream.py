"""Making batches of a stream: an `IterableDataset`, a generator, a data pipe.

A stream has no sample numbers, so a worker owns a shard of it, and a batch number counts within
the shard: batch ``k`` is batch ``k // workers`` of worker ``k % workers``. Who splits the stream is
told in `swift_loader.worker.split`.

A batch that is asked for out of turn (a worker was replaced, a run resumed) is reached by going
through the stream again, or from a saved state. Saving one may take longer than making a batch. So
a state goes with a batch only as long as states take a tenth of a worker's time; a run that is
resumed from an older one reads the few batches after it again.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from swift_loader.batch.fetch import ENDS, SKIP, Bad
from swift_loader.batch.seeding import seed_generators
from swift_loader.cache.worker_store import WorkerStore
from swift_loader.plan import Plan
from swift_loader.transport.messages import Made, Make
from swift_loader.transport.written_slots import WrittenSlots
from swift_loader.worker.lane import Lane
from swift_loader.worker.maker import EndOfShard, Job, MakeError, layouts_of, make_batch
from swift_loader.worker.place import Place
from swift_loader.worker.progress import FETCHING, READING_AGAIN, Progress
from swift_loader.worker.recipe import Recipe
from swift_loader.worker.shard import BeginAgain, Shard

__all__ = ["StreamMaker"]

_STATES_SHARE = 0.1  # of a worker's time, at most
_CHEAP_S = 5e-5  # a state that takes no longer goes with every batch


class StreamMaker:
    """Makes the batches of one worker's shard. Instead of a `Maker`.

    `log` is told who splits the stream.
    """

    def __init__(
        self,
        recipe: Recipe,
        shard: Shard | Lane,
        place: Place,
        index: int,
        progress: Progress,
        log: Callable[[str], object] | None = None,
        store: WorkerStore | None = None,
    ) -> None:
        self._store = store
        self._recipe = recipe
        self._index = index
        self._workers = place.worker_per_consumer
        self._split = shard.split
        self._tells = index == 0 and place.nb_consumer > 1  # who splits
        self._log = log
        self._progress = progress
        self._layouts = layouts_of(recipe)
        self._shard = shard
        self._epoch = -1
        self._next_batch = 0
        self._last_state_s = 0.0  # what the last state took
        self._state_s = 0.0  # what a state takes: the lesser of the last two
        self._earned_s = 0.0  # for states, since then

    def job(self, order: Make, plan: Plan, consumer: int) -> Job:
        """What is to be done for `order`, after the jobs before it."""
        return partial(self._make, order, plan, consumer)

    def _make(self, order: Make, plan: Plan, consumer: int, slots: WrittenSlots) -> Made:
        read = partial(self._read_batch, order, plan, consumer)
        try:
            made = make_batch(
                self._recipe,
                self._progress,
                order,
                slots,
                read,
                "reading the stream",
                layouts=self._layouts,
            )
        except MakeError as error:
            # The batch counts as read, as with torch: what the stream gives now is the next one's.
            self._next_batch = max(self._next_batch, order.number.k // self._workers + 1)
            doing = f"{error.fault.doing} ({self._where()})"
            raise MakeError(replace(error.fault, doing=doing)) from None
        except EndOfShard:
            raise EndOfShard(self._shard.state(0, over=True)) from None
        if self._tells or self._split.alone:
            self._tell_who_splits()
        times = made.times
        busy_s = times.fetch_s + times.collate_s + times.encode_s
        return made._replace(state=self._state(busy_s))

    def _read_batch(self, order: Make, plan: Plan, consumer: int) -> tuple[list[Any], list[Bad]]:
        """The items of the batch that is wanted, read after those before it."""
        number = order.number
        wanted = number.k // self._workers
        if number.epoch != self._epoch or wanted < self._next_batch or order.indices:
            self._begin(number.epoch, plan, order.indices)
        while True:
            # Up to the batch that is wanted, all was read before, by a worker that is gone.
            self._progress.at_stage(READING_AGAIN if self._next_batch < wanted else FETCHING)
            k = self._next_batch * self._workers + self._index
            seed_generators(plan.batch_seed(number.epoch, consumer, k))
            try:
                samples, bad = self._read(plan.batch_size)
            except BeginAgain:
                self._begin(number.epoch, plan, order.indices)
                continue
            except Exception:
                if self._next_batch >= wanted:
                    raise
                self._next_batch += 1  # the training loop has had this error
                continue
            if not samples or (plan.tail == "drop" and len(samples) < plan.batch_size):
                raise EndOfShard
            self._next_batch += 1
            if self._next_batch > wanted:
                return samples, bad

    def close(self) -> None:
        self._shard.close()
        if self._store is not None:
            self._store.close()

    def _begin(self, epoch: int, plan: Plan, saved: bytes) -> None:
        """Go to the beginning of the shard, or to where a saved state stands."""
        state = json.loads(saved) if saved else None
        self._next_batch = state["batch"] if state else 0
        self._epoch = epoch
        try:
            self._shard.begin(epoch, plan, state)
        except BaseException:
            self._shard.ended = True  # after this error nothing comes of the shard in this epoch
            raise

    def _read(self, count: int) -> tuple[list[Any], list[Bad]]:
        shard, transform = self._shard, self._recipe.transform
        samples: list[Any] = []
        bad: list[Bad] = []
        while len(samples) < count:
            self._progress.sample[0] = shard.position
            try:
                item = next(shard)
            except StopIteration:
                break
            except BeginAgain:
                raise
            except BaseException as error:
                if self._raises(error):
                    raise
                self._replace(error, samples, bad)
                continue
            if transform is None:
                samples.append(item)
                continue
            try:
                item = transform(item)
            except BaseException as error:
                if self._raises(error):
                    raise
                self._replace(error, samples, bad)
            else:
                samples.append(item)
        return samples, bad

    def _raises(self, error: BaseException) -> bool:
        return self._recipe.on_error == "raise" or isinstance(error, ENDS)

    def _replace(self, error: BaseException, samples: list[Any], bad: list[Bad]) -> None:
        """Do with an item that raised what the policy says."""
        on_error, position = self._recipe.on_error, self._shard.position
        # A stream has no other sample to put in its place: it goes on with the next one.
        stand_in = SKIP if isinstance(on_error, str) else on_error(error, position)
        bad.append(Bad(position, error, replaced=stand_in is not SKIP))
        if stand_in is not SKIP:
            samples.append(stand_in)

    def _state(self, busy_s: float) -> bytes:
        """Where the shard stands after this batch, if it can tell and a state is due."""
        if self._shard.tells_always:
            return self._shard.state(self._next_batch)
        self._earned_s += _STATES_SHARE * busy_s
        if self._earned_s < self._state_s and self._state_s > _CHEAP_S:
            return b""
        began_s = time.thread_time()  # of the CPU: on a busy machine it may have to wait for that
        state = self._shard.state(self._next_batch)
        took_s, self._earned_s = time.thread_time() - began_s, 0.0
        # The first may import what it needs, any may be delayed: one that took long is no measure.
        self._state_s, self._last_state_s = min(took_s, self._last_state_s), took_s
        return state

    def _where(self) -> str:
        index, count = self._split.place
        return f"shard {index} of {count}, after {self._shard.position} items of the stream"

    def _tell_who_splits(self) -> None:
        self._tells = self._split.alone = False
        if self._log is not None:
            self._log(self._split.story())
        if self._split.in_doubt:
            warnings.warn(
                f"{self._split.story()}. If the stream does not split itself by rank, every rank "
                "gets all of it: give stream_split='ranks'. If it does, stream_split='workers' "
                "ends this warning.",
                stacklevel=2,
            )
