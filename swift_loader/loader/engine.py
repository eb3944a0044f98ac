"""What a started loader holds open: how it is started, and how it is closed."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch

from swift_loader.batch.seeding import generators_drawn_from, generators_untouched
from swift_loader.cache.keeper import Keeper
from swift_loader.cache.naming import StoreName
from swift_loader.errors import ClosedError
from swift_loader.loader.caching import store_name
from swift_loader.loader.delivering import Delivering
from swift_loader.loader.in_process import InProcess
from swift_loader.loader.meshes import HostGroup
from swift_loader.loader.open_files import Need, check_open_files
from swift_loader.loader.options import Config
from swift_loader.loader.shipped import Shipped
from swift_loader.loader.target import Target
from swift_loader.loader.trial import try_one_batch
from swift_loader.loader.who_splits import Decision
from swift_loader.pipeline.elsewhere import launchers_of
from swift_loader.pipeline.lacking import told
from swift_loader.pipeline.link import Link
from swift_loader.pipeline.local import LocalLink
from swift_loader.pipeline.options import PipelineOptions
from swift_loader.pipeline.shell import Pipeline, Threads
from swift_loader.pipeline.staging import Stager
from swift_loader.telemetry.by_source import BySource
from swift_loader.telemetry.log import LogHandle, consumer_role, open_log
from swift_loader.telemetry.metrics import Meter
from swift_loader.telemetry.monitor import BenchmarkWriter, open_benchmark, versions
from swift_loader.telemetry.readings import loader_readings
from swift_loader.telemetry.sinks.pump import Pumps, open_sinks
from swift_loader.telemetry.sinks.sink import Source
from swift_loader.telemetry.stats import LoaderStats
from swift_loader.telemetry.trace import TraceWriter, open_trace
from swift_loader.worker.cpus import available_cpus, unbinding
from swift_loader.worker.launch import Zygote
from swift_loader.worker.launched import Launcher
from swift_loader.worker.place import Place
from swift_loader.worker.recipe import (
    Recipe,
    Size,
    build_dataset,
    given,
    length_of,
    lengths_of_sources,
)
from swift_loader.worker.threads import WorkerThreads

__all__ = ["Engine"]

_DRAWS = (
    "the data set (or transform, or collate_fn) draws from {}, and start_method='thread': all "
    "threads of this process share these generators, so a batch differs from run to run, and the "
    "training's own draws too. Draw from swift_loader.random_generators(), or give another "
    "start_method"
)


class Engine:
    """Made with the loader, so that torch is imported for the workers while the script goes on.

    `like`: an open engine whose workers are given the very same things of the user's. `out_of_it`:
    and its data set was made of what it ships, so nobody has changed it.
    """

    def __init__(self, config: Config, like: Engine | None = None, out_of_it: bool = False) -> None:
        self._config = config.without_dataset()
        recipe = config.part(Recipe, cache=store_name(config))
        self._own: Recipe | None = None  # where batches are made in this process
        self.shipped: Shipped | None = None  # where they are made elsewhere
        if config.in_process:
            self._own = recipe
        elif like is not None and like._ships_as(self._config, recipe.cache):
            assert like.shipped is not None
            self.shipped = Shipped.like(like.shipped, follows=not out_of_it)
        else:
            self._check_open_files(Target(decoder=config.batch_decoder))
            self.shipped = Shipped(recipe, config.start_method, bool(config.sources))
        self._pid = os.getpid()
        self._closed = False
        self._pipeline: Delivering | None = None
        self.stager: Stager | None = None
        self.meter: Meter | None = None
        self.trace: TraceWriter | None = None
        self._benchmark: BenchmarkWriter | None = None
        self._sinks: Pumps | None = None
        self._log: LogHandle | None = None
        self._cache = recipe.cache
        self._store = Keeper(recipe.cache)
        self._tried: Size | None = None
        # One that is forked holds what is here when the loader is started.
        early = config.worker_per_consumer and config.start_method != "fork"
        self._launcher = self._acquired() if early else None

    def _ships_as(self, config: Config, cache: StoreName | None) -> bool:
        """Whether a loader of the same data set with these options ships the same things.

        The name of the store says more than the option: it follows from the number of consumers.
        """
        mine = self._config
        in_recipe = {about.name for about in fields(Recipe)} - {"dataset_class", "dataset_kwargs"}
        return (
            self.shipped is not None
            and mine.start_method == config.start_method != "fork"
            and self._cache == cache
            and bool(mine.sources) == bool(config.sources)
            and all(getattr(mine, name) == getattr(config, name) for name in in_recipe)
        )

    @property
    def payload_fd(self) -> int:
        """Of the region from which workers are told what to make."""
        assert self.shipped is not None
        return self.shipped.fd

    @property
    def sees_changes(self) -> bool:
        """Whether batches are those of a data set as it is at the start: it was given built."""
        if self._own is not None:
            return self._own.dataset_class is given
        return self.shipped is not None and self.shipped.follows

    def ship_again(self, dataset: Any) -> bool:
        """Give workers that are to start the user's things as they are now, with this data set.

        False: workers have what was shipped before, and nobody can tell whether that is the same.
        """
        shipped = self.shipped
        if shipped is None or not shipped.follows:
            return False
        recipe = self._recipe_of(dataset)
        is_there = shipped.has(recipe)
        if is_there is False:
            if self._cache is not None:  # samples of the data set as it was are others
                self._cache = store_name(self._config.with_dataset(dataset))
                self._store = Keeper(self._cache)
            shipped.anew(self._recipe_of(dataset))
            self._tried = None
        return is_there is not None

    def _recipe_of(self, dataset: Any) -> Recipe:
        return self._config.with_dataset(dataset).part(Recipe, cache=self._cache)

    def size_of(self, dataset: Any) -> Size:
        """As a worker would say it of this object. Raises what its ``__len__`` raises."""
        return Size(length_of(self._recipe_of(dataset), dataset), lengths_of_sources(dataset))

    @property
    def started(self) -> bool:
        return self._pipeline is not None

    @property
    def closed(self) -> bool:
        return self._closed

    def recipe(self) -> Recipe:
        """The user's things as a worker gets them, arrays as views over the shared memory."""
        self.check_open()
        if self._own is not None:
            return self._with_dataset(self._own)
        assert self.shipped is not None
        return self.shipped.recipe()

    def try_one_batch(self) -> Size:
        """See `swift_loader.loader.trial`."""
        # The keys of a sampler are for workers alone: drawing them would change its state.
        return self._try(0 if self._config.by_sampler else self._config.batch_size)

    def count_samples(self) -> Size:
        """The length of the data set, which is built for it where batches are made; None: a stream.

        Raises what the data set's constructor raises.
        """
        self.check_open()
        if self._own is None:
            return self._try(0)
        with generators_untouched():
            dataset, nb_samples = build_dataset(self._with_dataset(self._own))
            return Size(nb_samples, lengths_of_sources(dataset))

    def _try(self, batch_size: int) -> Size:
        config = self._config
        launcher = self._acquired()
        trial = partial(
            try_one_batch,
            launcher,
            self.payload_fd,
            batch_size,
            config.seed or 0,
            config.timeout,
            Target(decoder=config.batch_decoder).decode_with(),
            by_source=config.mixing is not None and config.mixing.by_batch,
            group=_group(),
        )
        try:
            self._tried = _watched(trial) if config.start_method == "thread" else trial()
            return self._tried
        finally:
            launcher.release()

    def _acquired(self) -> Launcher:
        """Where local workers come from. Raises `ConfigError`, `NoRoomError`."""
        method = self._config.start_method
        if method == "thread":
            return WorkerThreads()
        with told():
            return Zygote.acquire(method)

    def _with_dataset(self, recipe: Recipe) -> Recipe:
        """The recipe of this process, whose data set is built once."""
        if recipe.dataset_class is not given:
            with generators_untouched():
                built = recipe.dataset_class(**recipe.dataset_kwargs)
            self._own = replace(recipe, dataset_class=given, dataset_kwargs={"dataset": built})
        assert self._own is not None
        return self._own

    @property
    def pipeline(self) -> Delivering:
        assert self._pipeline is not None
        return self._pipeline

    def start(
        self,
        consumer: int,
        seed: int,
        target: Target,
        splits: Decision,
        group: HostGroup | None = None,
    ) -> Size | None:
        """Start the workers and wait for the first; returns the dataset's length.

        Of a `group` of ranks, one has them; the others start nothing, and return None.

        Raises what the dataset's constructor raised in a worker, or `LoaderError`, among them
        `NoRoomError` where this process may not open enough files.
        """
        config = self._config
        takes = group.member if group is not None else None
        if self._own is None and takes is None:
            self._check_open_files(target, held=2 if self._launcher is not None else 1)
        if self._launcher is None and config.worker_per_consumer and takes is None:
            self._launcher = self._acquired()
        log = self._log = open_log(config.logger, consumer_role(consumer))
        self.meter = Meter(consumer, available_cpus())
        if config.cache is not None:
            self.meter.also(self._store.readings)
        if config.mixing is not None:
            self.meter.by_source = BySource(config.mixing.names, config.mixing.tokens)
        place = Place(
            consumer,
            config.nb_consumer,
            config.worker_per_consumer,
            seed,
            config.logger,
            config.worker_affinity or unbinding(),
            splits.by,
            _group(),
            split_why=splits.why,
            split_in_doubt=splits.in_doubt,
        )
        if self._own is not None:
            alone = self._pipeline = InProcess(
                self.recipe(),
                replace(place, worker_per_consumer=1, watches_draws=config.validate),
                self.meter,
                target.decode_with(),
                target.finish,
                config.max_bad_samples,
                log.logger.info,
            )
            self._store.hold(alone.nb_samples, consumer)
            return Size(alone.nb_samples, alone.lengths)
        if takes is not None:
            self._pipeline = takes
            if self._launcher is not None:
                self._launcher.release()
                self._launcher = None
            self._stage(target)
            return None
        leader = group.leader if group is not None else None
        if leader is not None:
            target = replace(target, hand_on=leader.on_map)
        kept = config.max_nb_batch_on_device + config.data_queue_size
        if target.hand_on is not None:
            kept = sys.maxsize  # whoever hands batches on bounds what it keeps
        on_map = target.on_map()

        def local(worker: int) -> Link:
            assert self._launcher is not None
            return LocalLink(self._launcher, worker, place, self.payload_fd, kept, on_map)

        elsewhere = launchers_of(
            config.sources,
            place,
            self.payload_fd,
            config.worker_per_consumer,
            config.remote_timeout,
        )
        pipeline = Pipeline(
            config.part(PipelineOptions, timeout_s=config.timeout),
            {**dict.fromkeys(range(config.worker_per_consumer), local), **elsewhere},
            self.meter,
            log.logger,
            awaited=elsewhere,
            threads=self._threads(target),
            decoder=target.decode_with(),
        )
        self._pipeline = pipeline if leader is None else leader.leading(pipeline)
        if config.worker_per_consumer and self._tried is not None:
            self._store.begin(self._tried.nb_samples)
        pipeline.start()
        if config.worker_per_consumer:
            self._store.hold(pipeline.nb_samples, consumer)
        self._stage(target)
        return Size(pipeline.nb_samples, pipeline.lengths)

    def _stage(self, target: Target) -> None:
        """Have batches moved to the device ahead of the loop, where there is one."""
        if target.staged:
            self.stager = Stager(
                self.pipeline,
                target.device if target.device is not None else torch.device("cpu"),
                target.to_device,
                self._config.max_nb_batch_on_device,
            )

    def stats(self) -> LoaderStats:
        """What was done so far."""
        assert self.meter is not None
        return replace(self.meter.snapshot(), cache=self._store.figures())

    def observe(self, facts: dict[str, Any], name: str) -> None:
        """Open what the options ask for, now that `facts` (of the plan) are known."""
        config = self._config
        meter = self.meter
        assert self._log is not None
        assert meter is not None
        self._log.logger.info(
            "consumer {} of {} started: {}, {} workers, plan {}, {}",
            meter.consumer,
            config.nb_consumer,
            name,
            config.worker_per_consumer,
            facts,
            ", ".join(f"{what} {version}" for what, version in versions().items()),
        )
        if config.persistent_workers is False and not config.in_process:
            self._log.logger.info(
                "persistent_workers=False: workers stay for all epochs all the same. What is "
                "changed in the data set between epochs does not reach them; call_dataset() does"
            )
        if config.benchmark or config.benchmark_file is not None:
            self._benchmark = open_benchmark(
                meter,
                path=config.benchmark_file,
                logger=self._log.logger,
                plan=facts,
                options=config.plain(),
                stats=self.stats,
            )
        if config.trace_file is not None:
            self.trace = open_trace(config.trace_file, meter.consumer, config.nb_consumer)
        if config.metrics:
            source = Source(name, lambda: loader_readings(self.stats()), meter.consumer)
            self._sinks = open_sinks(config.metrics, source, self._log.logger)

    def _check_open_files(self, target: Target, held: int = 0) -> None:
        """Raises `NoRoomError`."""
        workers, endpoints = self._config.worker_per_consumer, len(self._config.sources)
        every = self._threads(target) == "per worker"
        readers = max(1, workers + endpoints) if every else 1
        check_open_files(Need(workers, readers, endpoints), held)

    def _threads(self, target: Target) -> Threads:
        if target.decoder is None and not target.staged:
            return "none"
        return "per worker" if self._config.multithread else "one"

    def check_open(self) -> None:
        """Raises `ClosedError` after `close`, and in a process that was forked off."""
        if self._closed:
            raise ClosedError("the loader is closed; build a new one to go on")
        if self._pid != os.getpid():
            raise ClosedError(
                "this process was forked from the one that built the loader: build one here"
            )

    def close(self) -> None:
        """End everything, in this order, once."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        if self._in_own_thread():
            # The collector frees a forgotten loader in any thread, in the middle of anything.
            threading.Thread(target=self._close, name="swift_loader-close").start()
        else:
            self._close()

    def _in_own_thread(self) -> bool:
        if isinstance(self._launcher, WorkerThreads) and self._launcher.in_own_thread:
            return True
        staging = self.stager is not None and self.stager.is_current
        if self._sinks is not None and self._sinks.in_own_thread:
            return True
        return staging or (self._pipeline is not None and self._pipeline.in_own_thread())

    def _close(self) -> None:
        for part in (self._pipeline, self.stager, self._benchmark, self.trace, self._sinks):
            if part is not None:
                part.close()
        self._store.close()
        if self._launcher is not None:
            self._launcher.release()
        if self.shipped is not None:
            self.shipped.close()
        if self._log is not None:
            self._log.close()


def _watched(trial: Callable[[], Size]) -> Size:
    """A trial in this process: says what it draws from, and takes the draws back."""
    with generators_untouched(), generators_drawn_from() as drawn:
        size = trial()
    if drawn:
        text = _DRAWS.format(" and ".join(drawn))
        warnings.warn(text, RuntimeWarning, stacklevel=6)  # of the line that builds the loader
    return size


def _group() -> tuple[int, int] | None:
    """Rank and size of this process's process group, if it has one."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()
