"""What a data set is told before a batch: the epoch, and the calls of `SwiftLoader.call_dataset`.

A batch of an epoch is made when ``set_epoch(epoch)`` was called last with that epoch, and when the
calls that its plan holds were made, in order. What has ``set_epoch`` is told: the data set, those
that it wraps, their ``transform``, the option `transform`, and `collate_fn`. That holds for each
worker by itself, whenever and wherever it is started.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from swift_loader.batch.wrapped import calls_of, listeners_of
from swift_loader.cache.worker_store import WorkerStore
from swift_loader.order.told import text_as_call
from swift_loader.plan import Plan
from swift_loader.transport.messages import Made, Make
from swift_loader.transport.written_slots import WrittenSlots
from swift_loader.worker.birth import Birth
from swift_loader.worker.faults import report
from swift_loader.worker.lane import Lane
from swift_loader.worker.maker import Job, MakeError, Maker
from swift_loader.worker.place import Place
from swift_loader.worker.progress import Progress
from swift_loader.worker.recipe import Recipe, build_dataset
from swift_loader.worker.shard import Shard
from swift_loader.worker.split import Split
from swift_loader.worker.stream import StreamMaker
from swift_loader.worker.untouched import Untouched, holds_the_object

__all__ = ["TellingMaker", "made_by", "maker_of"]


class AnyMaker(Protocol):
    """A `Maker` or a `StreamMaker`."""

    def job(self, order: Make, plan: Plan, consumer: int) -> Job: ...

    def close(self) -> None: ...


def maker_of(birth: Birth, place: Place, index: int, progress: Progress) -> TellingMaker:
    """The maker of a worker that is born."""
    recipe = birth.recipe
    nb_samples = birth.nb_samples
    log = birth.log.logger.info if birth.log is not None else None

    def make_maker(dataset: Any, build: Callable[[], Any]) -> AnyMaker:
        store = store_of(recipe, dataset, nb_samples, place)
        shard: Shard | Lane
        if nb_samples is not None:
            return Maker(recipe, dataset, nb_samples, progress, store)
        if recipe.by_shards:
            shard = _lane_of(dataset, place, index, log)
        else:
            shard = Shard(dataset, birth.split, build)
        return StreamMaker(recipe, shard, place, index, progress, log, store)

    return TellingMaker(
        *(recipe, birth.dataset, make_maker, birth.build_again, birth.will_change),
        is_stream=nb_samples is None,
    )


def made_by(
    recipe: Recipe,
    dataset: Any,
    nb_samples: int | None,
    place: Place,
    index: int,
    progress: Progress,
    log: Callable[[str], object] | None = None,
) -> TellingMaker:
    """The maker of a data set, where it is made of it without the birth of a worker."""
    untouched = Untouched()

    def build() -> Any:
        return untouched.instead_of(build_dataset(recipe)[0])

    def will_change() -> None:
        if holds_the_object(recipe):
            untouched.keep(dataset)

    def make_maker(dataset: Any, build: Callable[[], Any]) -> AnyMaker:
        store = store_of(recipe, dataset, nb_samples, place)
        if nb_samples is not None:
            return Maker(recipe, dataset, nb_samples, progress, store)
        if recipe.by_shards:
            lane = _lane_of(dataset, place, index, log)
            return StreamMaker(recipe, lane, place, index, progress, store=store)
        split = Split(place, index)
        split.look_at(dataset, recipe.dataset_kwargs)
        shard = Shard(dataset, split, build, announces=False)
        return StreamMaker(recipe, shard, place, index, progress, store=store)

    return TellingMaker(
        *(recipe, dataset, make_maker, build, will_change), is_stream=nb_samples is None
    )


def _lane_of(dataset: Any, place: Place, index: int, log: Callable[[str], object] | None) -> Lane:
    split = Split(replace(place, stream_split="ranks"), index)
    return Lane(dataset, split, place, index, log)


def store_of(
    recipe: Recipe, dataset: Any, nb_samples: int | None, place: Place
) -> WorkerStore | None:
    """A worker's end of the cache, where there is one."""
    if recipe.cache is None:
        return None
    # What our own collate makes of samples are copies of them; others may change or keep them.
    seen = recipe.transform is not None or recipe.collate_fn is not None
    name = recipe.cache.of_length(nb_samples)
    watched = type(dataset).__qualname__ if place.watches_draws else None
    return WorkerStore(
        name, place.consumer_index, recipe.threads_per_worker, seen, watched, place.trial
    )


class TellingMaker:
    """A maker whose data set is told what its batches' plans say.

    `make_maker` makes one, of a data set and of how that is built again, with all calls made.
    `build` builds it as it was; `will_change` is called before the first call of it.
    A stream's maker tells the stream its epoch, where it begins one.
    """

    def __init__(
        self,
        recipe: Recipe,
        dataset: Any,
        make_maker: Callable[[Any, Callable[[], Any]], AnyMaker],
        build: Callable[[], Any],
        will_change: Callable[[], None],
        *,
        is_stream: bool,
    ) -> None:
        self._recipe = recipe
        self._dataset = dataset
        self._make_maker = make_maker
        self._build = build
        self._will_change = will_change
        self._maker = make_maker(dataset, self._build_again)
        self._calls: tuple[str, ...] = ()  # made so far
        self._is_told = False  # of calls, by this or an earlier order
        self._epoch = -1
        self._is_stream = is_stream
        self._tells_epochs = bool(self._listeners())

    def job(self, order: Make, plan: Plan, consumer: int) -> Job:
        """What is to be done for `order`."""
        self._is_told |= bool(plan.calls)
        if not self._tells_epochs and not self._is_told:
            return self._maker.job(order, plan, consumer)
        return partial(self._tell_and_make, order, plan, consumer)

    def close(self) -> None:
        self._maker.close()

    def _tell_and_make(self, order: Make, plan: Plan, consumer: int, slots: WrittenSlots) -> Made:
        doing = "calling set_epoch"
        try:
            if plan.calls != self._calls:
                doing = "calling the data set as call_dataset() asked"
                self._call(plan.calls)
            if self._tells_epochs and order.number.epoch != self._epoch:
                doing = "calling set_epoch"
                for listener in self._listeners():
                    listener.set_epoch(order.number.epoch)
                self._epoch = order.number.epoch
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it goes to the training loop
            raise MakeError(report(error, doing, ())) from None
        return self._maker.job(order, plan, consumer)(slots)

    def _listeners(self) -> list[Any]:
        others = (self._recipe.transform, self._recipe.collate_fn)
        if not self._is_stream:
            return listeners_of(self._dataset, *others)
        told = listeners_of(self._dataset)  # where it begins an epoch
        return [one for one in listeners_of(*others) if not any(one is two for two in told)]

    def _build_again(self) -> Any:
        self._dataset = self._build()
        for text in self._calls:
            self._call_one(text)
        return self._dataset

    def _call(self, calls: tuple[str, ...]) -> None:
        """Bring the data set to where these calls have been made."""
        if calls[: len(self._calls)] != self._calls:  # a batch of an epoch before: begin anew
            self._maker.close()
            self._dataset = self._build()
            self._maker = self._make_maker(self._dataset, self._build_again)
            self._calls, self._epoch = (), -1
        self._will_change()
        for text in calls[len(self._calls) :]:
            self._call_one(text)
            self._calls = (*self._calls, text)

    def _call_one(self, text: str) -> None:
        method, arguments = text_as_call(text)
        found = calls_of(self._dataset, method)
        if not found:
            raise AttributeError(
                f"{type(self._dataset).__name__!r} object has no method {method!r}, nor has what "
                "it wraps"
            )
        for call in found:
            call(*arguments)
