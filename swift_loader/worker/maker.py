"""Making one batch: fetch and transform, collate, encode. The same for all kinds of worker.

No process, no socket: a `Maker` is given an order and slots, and either fills a slot or raises
`MakeError`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch.utils.data import default_convert, get_worker_info

from swift_loader.batch.arena import Arena
from swift_loader.batch.asynchronous import Upcoming, UpcomingBatch, awaiting
from swift_loader.batch.codec import encode, encode_bytes
from swift_loader.batch.collate import collate, collates_as_torch
from swift_loader.batch.exceptions import summary_of
from swift_loader.batch.fetch import Bad, BadSampleError, Fetcher
from swift_loader.batch.layouts import Layouts
from swift_loader.batch.seeding import seed_generators
from swift_loader.batch.stopwatch import KEPT, WORTH_S
from swift_loader.cache.worker_store import WorkerStore
from swift_loader.errors import ConfigError
from swift_loader.order.keys import decode_keys
from swift_loader.plan import Plan
from swift_loader.plan.neighbours import Neighbours
from swift_loader.sources.blended import Blended
from swift_loader.transport.messages import BadSample, ErrorReport, Made, Make, StageTimes
from swift_loader.transport.written_slots import WrittenSlots
from swift_loader.worker.birth import Info
from swift_loader.worker.columns import gather_of, reads_documents
from swift_loader.worker.faults import plain_key, report
from swift_loader.worker.progress import COLLATING, ENCODING, IDLE, Progress
from swift_loader.worker.recipe import Recipe, length_of

__all__ = ["EndOfShard", "Job", "MakeError", "Maker", "collated", "layouts_of", "make_batch"]

#: Fills the slot that its order names. Raises `MakeError`, and `EndOfShard` for a stream; the slot
#: is unused then.
Job = Callable[[WrittenSlots], Made]


class MakeError(Exception):
    """The batch can't be made; `fault` says it all."""

    def __init__(self, fault: ErrorReport) -> None:
        super().__init__(fault.message)
        self.fault = fault


class EndOfShard(Exception):
    """The worker's shard of the stream has no such batch. `state`: where it stands then."""

    def __init__(self, state: bytes = b"") -> None:
        super().__init__()
        self.state = state


class Maker:
    """Makes batches of one dataset for one consumer."""

    def __init__(
        self,
        recipe: Recipe,
        dataset: Any,
        nb_samples: int,
        progress: Progress,
        store: WorkerStore | None = None,
    ) -> None:
        self._recipe = recipe
        self._dataset = dataset
        self._nb_samples = nb_samples
        self._epoch = -1  # of the last batch
        self._progress = progress
        self._store = store
        dataset = awaiting(dataset)
        self._fetcher = Fetcher(
            dataset,
            nb_samples,
            recipe.on_error,
            recipe.threads_per_worker,
            progress.sample,
            recipe.transform,
            None if store is None else store.source,
            as_given=recipe.auto_collation and recipe.collate_fn is not None,
        )
        mixes = isinstance(dataset, Blended)
        self._collate_of = getattr(dataset, "collate_of", None) if mixes else None
        if store is not None:
            store.read_ahead(dataset, self._fetcher.loop, self._fetcher.pool)
        by_coroutines = self._fetcher.loop is not None and recipe.auto_collation
        self._upcoming = Upcoming(self._fetcher.ahead) if by_coroutines else None
        self._fetch = self._fetcher.fetch if recipe.auto_collation else self._fetcher.fetch_one
        users = (recipe.transform, recipe.collate_fn, recipe.batch_encoder)
        self._gather: Callable[[list[int], Arena], Any] | None = None
        if recipe.auto_collation and not any(users):
            self._gather = gather_of(dataset) if store is None else store.gather
        self._gather_may_draw = reads_documents(dataset)
        self._neighbours: Neighbours | None = None
        self._layouts = layouts_of(recipe)
        self._nb_timed = 0  # batches to come whose samples are timed one by one

    def job(self, order: Make, plan: Plan, consumer: int) -> Job:
        """What is to be done for `order`.

        To be called when the order comes: several come together, and the plan answers them one
        after the other in a sixth of the time that each takes between two batches, when the caches
        are full of samples.
        """
        number = order.number
        own: list[int] = []
        if order.indices:
            seed = plan.batch_seed(number.epoch, consumer, number.k)
        else:
            if self._neighbours is None or self._neighbours.consumer != consumer:
                self._neighbours = Neighbours(consumer)
            own, seed = self._neighbours.batch(plan, number.epoch, number.k)
        if self._store is not None and self._store.source is not None:
            self._store.ordered(plan, number, own)
            return partial(self._make_through, self._store, plan, order, own, seed)
        begun = None
        if self._upcoming is not None and own:
            begun = self._upcoming.want(own)
        return partial(self._make, order, own, seed, begun)

    def _make_through(
        self,
        store: WorkerStore,
        plan: Plan,
        order: Make,
        indices: Any,
        seed: int,
        slots: WrittenSlots,
    ) -> Made:
        store.begin(plan, order.number, bool(order.indices))
        try:
            return self._make(order, indices, seed, None, slots)
        finally:
            store.end()

    def _make(
        self,
        order: Make,
        indices: Any,
        seed: int,
        begun: UpcomingBatch | None,
        slots: WrittenSlots,
    ) -> Made:
        plain = True
        if order.number.epoch != self._epoch:
            info = get_worker_info()
            if isinstance(info, Info):
                info.epoch_begins(order.number.epoch)
            if not order.indices:
                self._check_length(order.number.epoch)
            self._epoch = order.number.epoch
        if order.indices:
            try:
                indices, plain = decode_keys(order.indices)
            except Exception as error:  # noqa: BLE001 - it goes to the training loop
                raise MakeError(report(error, "unpickling the keys of a sampler")) from None
        if self._gather is not None and plain and collates_as_torch():
            if self._gather_may_draw:
                seed_generators(seed)
            # Else no code of the user's runs, and seeding takes longer than gathering.
            gather = partial(self._gather, indices)
            fetch = partial(self._seed_and_fetch, seed, indices)
        else:
            gather = None
            seed_generators(seed)
            fetch = partial(self._fetch, indices, plain)
        if begun is not None and self._upcoming is not None:
            fetch = partial(self._fetcher.fetch, indices, plain, self._upcoming.take(begun))
        own = None if self._collate_of is None else self._collate_of(indices)  # of a mixture
        recipe = self._recipe if own is None else replace(self._recipe, collate_fn=own)
        layouts = self._layouts if recipe.collate_fn is None else None
        made = make_batch(
            recipe, self._progress, order, slots, fetch, "fetching", indices, gather, layouts
        )
        if self._nb_timed or made.times.fetch_s > WORTH_S * made.nb_samples:
            return self._with_slowest(made)
        return made

    def _check_length(self, epoch: int) -> None:
        """Raises `MakeError` where ``set_epoch`` or somebody else has changed it: samples would be
        left out in silence.
        """
        try:
            length = length_of(self._recipe, self._dataset)
            if length != self._nb_samples:
                raise ConfigError(
                    f"the data set had {self._nb_samples} samples when it was built, and has "
                    f"{length} in epoch {epoch}: a loader counts them once. Build another loader "
                    "for another length (with_options() does so quickly), or keep the length and "
                    "choose the samples by a sampler"
                )
        except Exception as error:  # noqa: BLE001 - it goes to the training loop
            raise MakeError(report(error, "looking at the data set's length", ())) from None

    def _seed_and_fetch(self, seed: int, indices: Any) -> tuple[list[Any], list[Bad]]:
        seed_generators(seed)
        return self._fetch(indices)

    def _with_slowest(self, made: Made) -> Made:
        """Tell which of its samples took longest, if that is worth it, and go on timing them as
        long as it may be.
        """
        times = made.times
        before, self._nb_timed = self._nb_timed, max(0, self._nb_timed - 1)
        if times.fetch_s > WORTH_S * made.nb_samples:
            self._nb_timed = KEPT
        if (before > 0) != (self._nb_timed > 0):
            self._fetcher.time_samples(self._nb_timed > 0)
        seconds, index = self._fetcher.slowest()
        if seconds < WORTH_S:
            return made
        return made._replace(times=times._replace(slowest_s=seconds, slowest=index))

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
        self._fetcher.close()


def layouts_of(recipe: Recipe) -> Layouts | None:
    """For `make_batch`, where the default collate and the codec make all of a batch."""
    if not recipe.auto_collation or recipe.collate_fn is not None or recipe.batch_encoder:
        return None
    return Layouts()


def make_batch(
    recipe: Recipe,
    progress: Progress,
    order: Make,
    slots: WrittenSlots,
    fetch: Callable[[], tuple[Any, list[Bad]]],
    fetching: str,
    indices: Sequence[int] = (),
    gather: Callable[[Arena], Any] | None = None,
    layouts: Layouts | None = None,
) -> Made:
    """Fetch the samples of a batch, collate them, and put the batch into its slot.

    `fetching` says in an error what `fetch` does. `indices` are the samples' where they have any.
    `gather` makes the batch at once, or gives None where its samples must be fetched. `layouts` are
    of the batches before, where the default collate makes them.
    Raises `MakeError`, and `EndOfShard` where `fetch` does.
    """
    progress.at_ticket(order.ticket)
    doing = fetching
    arena = slots.arena(order.slot)
    bad: list[Bad] = []
    laid = None
    try:
        began = time.perf_counter()
        batch = None if gather is None else _gathered(gather, arena)
        if batch is not None:
            nb_samples = len(indices)
            fetched = time.perf_counter()
            layouts = None
        else:
            samples, bad = fetch()
            nb_samples = len(samples if type(samples) is list else indices)
            fetched = time.perf_counter()
            doing = "collating"
            progress.at_stage(COLLATING)
            laid = None if layouts is None else layouts.lay(samples, arena)
            if laid is None:
                batch = collated(recipe, samples, arena, indices)
        ended = time.perf_counter()
        if laid is not None:
            used, in_slot, skeleton = arena.used_bytes, 0, laid
            encoded = ended
        else:
            doing = "encoding"
            progress.at_stage(ENCODING)
            used, in_slot, skeleton = slots.store(order.slot, arena, _put(recipe, batch))
            encoded = time.perf_counter()
            if layouts is not None and not in_slot:
                layouts.learn(samples, skeleton, used)
    except EndOfShard:
        raise
    except BadSampleError as error:
        cause = error.__cause__
        assert cause is not None
        raise MakeError(report(cause, doing, error.keys)) from None
    except BaseException as error:  # noqa: BLE001 - it goes to the training loop
        raise MakeError(report(error, doing, indices)) from None
    finally:
        progress.at_stage(IDLE)
    grown = slots.grown()
    return Made(
        order.ticket,
        nb_samples,
        used,
        grown[1] if grown else 0,
        StageTimes(fetched - began, ended - fetched, encoded - ended),
        skeleton,
        in_slot,
        tuple(map(_as_told, bad)) if bad else (),
        encoded,
    )


def _gathered(gather: Callable[[Arena], Any], arena: Arena) -> Any:
    """What `gather` makes; None where it fails: fetching the samples tells which of them is bad."""
    mark = arena.used_bytes
    try:
        return gather(arena)
    except Exception:  # noqa: BLE001 - fetching the samples raises it again
        arena.rewind(mark)
        return None


def _as_told(one: Bad) -> BadSample:
    return BadSample(plain_key(one.index), summary_of(one.error), one.replaced)


def collated(recipe: Recipe, samples: Any, arena: Arena | None, indices: Any) -> Any:
    """The batch of these samples; without batching, the sample. Raises what `collate_fn` does."""
    if not recipe.auto_collation:
        [sample] = samples
        return (recipe.collate_fn or default_convert)(sample)
    if recipe.collate_fn is not None:
        return recipe.collate_fn(samples)
    known = len(indices) == len(samples)  # not of a stream, nor where a bad sample was left out
    return collate(samples, arena, indices if known else None)


def _put(recipe: Recipe, batch: Any) -> Callable[[Arena], bytes]:
    """Puts `batch` into an arena by the codec in use, and returns its skeleton."""
    if recipe.batch_encoder is not None:
        return partial(encode_bytes, recipe.batch_encoder(batch))
    return partial(encode, batch)
