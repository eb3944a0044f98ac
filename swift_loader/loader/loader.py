"""`SwiftLoader`: what a training script holds."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from swift_loader.batch.fetch import OnError
from swift_loader.batch.shipping import pack, unpack
from swift_loader.containers.shared_list import shipping_shared_lists
from swift_loader.errors import ClosedError, refuse
from swift_loader.loader.engine import Run, Target
from swift_loader.loader.epoch import EpochIterator, Standing
from swift_loader.loader.from_torch import dataset_and_options
from swift_loader.loader.options import (
    FIXED_SEED,
    Config,
    check_callable,
    check_codec,
    check_on_error,
    check_platform,
    check_samplers,
    chosen_seed,
)
from swift_loader.order.order import Order, State, saved_seed
from swift_loader.order.planned import PlannedOrder
from swift_loader.order.sampled import SampledOrder, batches_of
from swift_loader.order.stream import StreamOrder
from swift_loader.pipeline.sources import Source, sources_of
from swift_loader.plan import Plan
from swift_loader.ranks.agreement import agree_on_plan, agree_on_seed, is_collective, own_index
from swift_loader.ranks.equal_steps import EqualSteps, check_equal_steps, check_ranks
from swift_loader.telemetry.stats import LoaderStats
from swift_loader.transport.memory import map_private
from swift_loader.transport.slots import OnMap
from swift_loader.worker.recipe import Recipe, given
from swift_loader.worker.trial import count_samples, try_one_batch

__all__ = ["SwiftLoader"]


class SwiftLoader:
    """Batches of a map-style dataset for the GPUs of a run, one consumer a GPU.

    Each training process builds a loader with the same arguments, calls
    `start(consumer_index, device)` and iterates, an epoch each time. Every sample comes exactly
    once over all consumers, and all consumers make the same number of steps (see `tail`).

    Parameters
    ----------
    dataset_class:
        Any callable that returns a map-style dataset (``__getitem__``, ``__len__``, and
        ``__getitems__`` if it has one), or a stream (an `IterableDataset`, a data pipe, anything
        with ``__iter__``): of that, each item comes once over all consumers and workers. Called in
        every worker, and once here if `validate`.
    dataset_kwargs:
        Its keyword arguments. Serialized once, into shared memory; arrays are mapped by the
        workers, not copied. The loader keeps no reference to them.
    batch_size:
        Samples a batch, per consumer.
    nb_consumer, worker_per_consumer:
        Training processes; and worker processes for each of them. ``"auto"`` begins with one
        worker, adds more while the training loop waits for data, as long as there are CPUs, and
        takes away those that are not needed. The batches are the same.
    shuffle:
        A new order every epoch. Without it every epoch has the dataset's own order.
    seed:
        Of the order, and of the random draws in workers. All consumers must agree. Not given: the
        environment's `PL_GLOBAL_SEED`; else rank 0's `torch.initial_seed()` where
        `torch.distributed` is initialised; else 0. Never the clock. Also `seed_number`,
        `seed_numer`.
    data_queue_size:
        Batches made and not yet consumed, over all workers of a consumer. Default: 10; or twice the
        workers (also of endpoints) where that is more, so that all have something to do; or, up
        to 40, as many as lie in 32 MB.
    message_queue_size:
        Batch numbers outstanding at one worker, at most.
    max_buffer_size:
        Batches that a reader thread decodes ahead. Default ``max(2, data_queue_size //
        worker_per_consumer)``.
    collate_fn:
        Samples to a batch. Default: torch's semantics for every type, and dataclasses and `None`
        besides, straight into shared memory. One of your own costs one copy of the batch.
    logger:
        A path prefix, or a dict with ``path``, ``stdout``, ``level``. Default: nothing is logged.
    batch_encoder, batch_decoder:
        A batch to bytes, and back; both or neither. Default: pickle protocol 5 with tensors and
        arrays out of band in shared memory.
    nearby_shuffle:
        The window, in samples, within which the order is permuted; 0 permutes all. Default ``5 *
        batch_size``: reading stays nearly sequential.
    benchmark, benchmark_file:
        Write a line of JSON a second, into the file or else into the log.
    validate:
        Before anything is launched, build the dataset and make, encode and decode one batch here,
        so that what goes wrong does so plainly. Turn off where the dataset is expensive to build.
    multithread:
        Where batches need work on their way (a device, a decoder of yours), one reader thread a
        worker, or one for all. Elsewhere the training thread reads for itself: handing a small
        batch from thread to thread costs more than the batch.
    max_nb_batch_on_device:
        Batches that wait on the device ahead of the training loop.
    tail:
        ``"balanced"``: every sample once and equal steps at the same time; a last batch may be a
        sample shorter on some consumers. ``"drop"``: full batches only. ``"pad"``: equal sample
        counts by wrapping round.
    in_order:
        Batches in the plan's order; otherwise the first that is ready, within the epoch.
    timeout, on_timeout:
        Seconds without a batch after which an error names the worker, the sample and its stack;
        None waits for ever. ``on_timeout="restart"`` replaces the worker instead. `start()` waits
        as long as the dataset's constructor takes: reading an index may take an hour.
    worker_init_fn:
        Called in each worker with its number, before the dataset is built.
    threads_per_worker:
        A pool of threads in each worker, for datasets that wait for I/O. Draws from the global
        random generators then depend on the threads' timing.
    on_error, max_bad_samples:
        What to do with a sample that raises: ``"raise"``, ``"skip"``, ``"replace"`` or a callable
        ``(exception, index) -> sample`` (or `swift_loader.SKIP`). More than `max_bad_samples` in
        an epoch are an error (None: no bound).
    max_worker_restarts:
        Dead workers that are replaced in an epoch, before it is an error.
    worker_affinity:
        CPUs that the workers may run on: one list for all, or a list of lists, dealt round.
    trace_file:
        Write a trace of the pipeline's stages for https://ui.perfetto.dev.
    sampler, batch_sampler:
        An order of yours, such as a torch `Sampler`: indices, or lists of them. It says what this
        consumer gets (torch's `DistributedSampler` does that by itself, others repeat themselves on
        every consumer); ``set_epoch`` is called if it has one.
    remote_workers:
        Workers elsewhere, beside the local ones or (`worker_per_consumer` 0) in their place:
        addresses of endpoints that `swift-loader serve` runs, such as ``["tcp://node01:6543"]``,
        or an object such as `swift_loader.remote.RayWorkers`.
    remote_key:
        The key file that the endpoints have, made by ``swift-loader keygen``; default: what the
        environment's `SWIFT_LOADER_KEY` names, if it is set.
    remote_timeout:
        Seconds for which an endpoint that can't be reached is tried again before it is given up;
        one that was in use and shows no life for a third of that loses its work to others.
    equal_steps:
        For streams, whose shards may differ in length: all consumers end the epoch at the same
        step, when the first of them has no batch left. Needs `torch.distributed` with a rank a
        consumer; all must begin every epoch, and leave it after the same step, within `timeout`
        of each other. One that fails or never comes is an `EqualStepsError` on the others.

    Raises
    ------
    ConfigError
        An option is wrong: the option, the value and the fix.
    ShippingError
        Something can't travel to the workers: which thing.
    Exception
        With `validate`, whatever the dataset, the collate function or the codec raise.
    """

    def __init__(
        self,
        dataset_class: Callable[..., Any],
        dataset_kwargs: Mapping[str, Any] | None = None,
        batch_size: int = 1,
        nb_consumer: int = 1,
        worker_per_consumer: int | Literal["auto"] = 1,
        shuffle: bool = False,
        *,
        seed: int | None = None,
        seed_number: int | None = None,
        seed_numer: int | None = None,
        data_queue_size: int | None = None,
        message_queue_size: int = 10,
        max_buffer_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        logger: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        batch_encoder: Callable[[Any], bytes] | None = None,
        batch_decoder: Callable[[bytes], Any] | None = None,
        nearby_shuffle: int | None = None,
        benchmark: bool = True,
        benchmark_file: str | os.PathLike[str] | None = None,
        validate: bool = True,
        multithread: bool = True,
        max_nb_batch_on_device: int = 1,
        tail: Literal["balanced", "drop", "pad"] = "balanced",
        in_order: bool = True,
        timeout: float | None = 600.0,
        on_timeout: Literal["raise", "restart"] = "raise",
        worker_init_fn: Callable[[int], None] | None = None,
        threads_per_worker: int = 1,
        on_error: OnError = "raise",
        max_bad_samples: int | None = None,
        max_worker_restarts: int = 10,
        worker_affinity: Sequence[int] | Sequence[Sequence[int]] | None = None,
        trace_file: str | os.PathLike[str] | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        remote_workers: str | Source | Sequence[str | Source] | None = None,
        remote_key: str | os.PathLike[str] | None = None,
        remote_timeout: float = 30.0,
        equal_steps: bool = False,
    ) -> None:
        check_platform()
        check_callable("dataset_class", dataset_class, optional=False)
        check_callable("collate_fn", collate_fn)
        check_callable("worker_init_fn", worker_init_fn)
        check_codec(batch_encoder, batch_decoder)
        check_on_error(on_error)
        check_samplers(sampler, batch_sampler, shuffle=shuffle, batch_size=batch_size)
        if dataset_kwargs is not None and not isinstance(dataset_kwargs, Mapping):
            refuse("dataset_kwargs", dataset_kwargs, "give a dict of keyword arguments, or None")
        self._sources = sources_of(remote_workers, remote_key)
        self._config = config = Config.of(
            {
                "batch_size": batch_size,
                "nb_consumer": nb_consumer,
                "worker_per_consumer": worker_per_consumer,
                "shuffle": shuffle,
                "seed": seed,
                "seed_number": seed_number,
                "seed_numer": seed_numer,
                "data_queue_size": data_queue_size,
                "message_queue_size": message_queue_size,
                "max_buffer_size": max_buffer_size,
                "logger": logger,
                "nearby_shuffle": nearby_shuffle,
                "benchmark": benchmark,
                "benchmark_file": benchmark_file,
                "validate": validate,
                "multithread": multithread,
                "max_nb_batch_on_device": max_nb_batch_on_device,
                "tail": tail,
                "in_order": in_order,
                "timeout": timeout,
                "on_timeout": on_timeout,
                "threads_per_worker": threads_per_worker,
                "max_bad_samples": max_bad_samples,
                "max_worker_restarts": max_worker_restarts,
                "worker_affinity": worker_affinity,
                "trace_file": trace_file,
                "remote_timeout": remote_timeout,
                "equal_steps": equal_steps,
            },
            nb_remote=sum(source.nb_links for source in self._sources),
        )
        self._decoder = batch_decoder
        self._sampled = (
            None
            if sampler is None and batch_sampler is None
            else batches_of(sampler, batch_sampler, config.batch_size, tail == "drop")
        )
        self._seed = chosen_seed(config.seed)
        # Kept open for workers that are still to start: nobody else may have these lists by then.
        with shipping_shared_lists(by_value=bool(self._sources)) as self._shared_lists:
            payload = pack(
                {
                    "dataset_class": dataset_class,
                    "dataset_kwargs": dict(dataset_kwargs or {}),
                    "collate_fn": collate_fn,
                    "batch_encoder": batch_encoder,
                    "worker_init_fn": worker_init_fn,
                    "on_error": on_error,
                    "threads_per_worker": config.threads_per_worker,
                }
            )
        self._run = Run(config, payload)
        # Closes at the interpreter's end too, and must hold nothing that holds the loader.
        self._finalizer = weakref.finalize(self, self._run.close)
        self._length: tuple[int | None] | None = None  # unknown; else that, None for a stream
        if config.validate:
            recipe = self._unpacked_recipe()
            self._length = (try_one_batch(recipe, config.batch_size, batch_decoder),)
            if config.equal_steps:
                check_equal_steps(self._length[0])
        self._equal_steps: EqualSteps | None = None
        self._hand_on: OnMap | None = None
        self._consumer = 0
        self._epoch = 0  # the one that the next `iter` gives
        self._order: Order | None = None
        self._loaded: State | None = None  # not applied yet
        self._applied: State | None = None
        self._standing: Standing | None = None

    @classmethod
    def from_dataset(cls, dataset: Any, *args: Any, **kwargs: Any) -> SwiftLoader:
        """A loader of a dataset that is built already; it travels to the workers by pickle.

        The other arguments are those of the class, from `batch_size` on.
        """
        return cls(given, {"dataset": dataset}, *args, **kwargs)

    @classmethod
    def from_dataloader(cls, torch_dataloader: Any, **options: Any) -> SwiftLoader:
        """A loader with the dataset and the arguments of torch's `DataLoader`: a one-line try.

        The batches are the same, but for the order where it was shuffled: that is this loader's. A
        sampler that you brought keeps its own. `options` are those of the class and go before what
        is found; `swift_loader.loader.from_torch` says which argument becomes which.

        Raises `ConfigError` for anything that is no `DataLoader`.
        """
        dataset, found = dataset_and_options(torch_dataloader)
        return cls.from_dataset(dataset, **{**found, **options})

    # ---- the life of a loader

    def start(
        self,
        consumer_index: int,
        device: torch.device | str | None = None,
        to_device: Callable[[Any, torch.device], Any] | None = None,
    ) -> None:
        """Start this consumer's workers; returns when the first of them takes orders.

        Parameters
        ----------
        consumer_index:
            Which consumer this process is, in ``[0, nb_consumer)``: its rank.
        device:
            Where batches are moved ahead of the loop. None or the CPU: they stay where they are,
            in shared memory.
        to_device:
            ``(batch, device) -> batch``, in place of the recursive move of tensors and arrays.

        Raises
        ------
        ConfigError
            `consumer_index` is out of range, or the dataset is too short for its consumers.
        ClosedError
            The loader was started before, or closed.
        PlanMismatchError
            With `torch.distributed` initialised: the ranks' arguments differ.
        Exception
            What the dataset's constructor raised in a worker, with the worker's traceback.
        """
        run = self._run
        run.check_open()
        if run.started:
            raise ClosedError("start() was called before; one loader is one consumer")
        self._check_consumer_index(consumer_index)
        check_callable("to_device", to_device)
        if self._config.equal_steps:
            check_ranks(self._config.nb_consumer)
        target = Target(_device(device), to_device, self._decoder, self._hand_on)
        self._consumer = consumer_index
        collective = is_collective(self._config.nb_consumer)
        if self._seed is None:
            self._seed = agree_on_seed() if collective else FIXED_SEED
        # What was asked before, was asked as consumer 0, and perhaps of another seed.
        self._order = None
        self._loaded = self._loaded or self._applied
        failure: BaseException | None = None
        try:
            try:
                self._length = (run.start(consumer_index, self._seed, target, self._sources),)
                self._the_order()
            except BaseException as error:
                failure = error
                raise
            finally:
                if collective and not isinstance(failure, KeyboardInterrupt):
                    agree_on_plan(self._facts() if failure is None else {}, failure)
            if self._config.equal_steps and collective:
                self._equal_steps = EqualSteps(self._config.timeout_s)
                weakref.finalize(self, self._equal_steps.close)
            run.observe(self._facts())
            self._prefetch()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all workers and threads, now; batches that you hold stay valid. Twice is fine."""
        self._finalizer()
        if self._equal_steps is not None:
            self._equal_steps.close()

    def __enter__(self) -> SwiftLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def hand_on(self, on_map: OnMap) -> bool:
        """Deliver batches as they lie in their slots: for `swift_loader.sharing`.

        Each is then ``(skeleton, base)``, the arguments of `swift_loader.batch.codec.decode`, and
        `on_map` learns of every slot's region. Call before `start()`. False, and nothing is
        changed, where that can't be: the loader was started, has a codec of the user's, or is one
        of several consumers.
        """
        if self._run.started or self._decoder is not None or self._config.nb_consumer > 1:
            return False
        self._hand_on = on_map
        return True

    def start_alone(self, device: torch.device) -> bool:
        """Start as the only consumer, if nobody has: for `swift_loader.sharing`.

        False, and nothing is changed, where it was started or is one of several consumers.
        """
        if self._run.started or self._config.nb_consumer > 1:
            return False
        self.start(0, device)
        return True

    # ---- iterating

    def __iter__(self) -> Iterator[Any]:
        """The next epoch, from its beginning (or from where a loaded state stands).

        Where `start()` was not called: with one consumer, or where `torch.distributed` is
        initialised with as many ranks as consumers, that is done here, without a device.

        Raises `ClosedError` when there are several consumers and nothing says which this one is.
        """
        run = self._run
        run.check_open()
        if not run.started:
            index = own_index(self._config.nb_consumer)
            if index is None:
                raise ClosedError(
                    f"call start(consumer_index, device) before iterating: there are "
                    f"{self._config.nb_consumer} consumers, and this process must say which it is"
                )
            self.start(index)
        assert run.meter is not None
        if self._standing is not None:
            self._standing.overtaken = True
        order = self._the_order()
        part = order.part(self._epoch)
        if self._equal_steps is not None:
            self._equal_steps.begin(part.epoch)
        standing = self._standing = Standing(part)
        run.pipeline.begin(part, order)
        if run.stager is not None:
            run.stager.begin(part)
        self._epoch += 1
        run.meter.epoch_begins(part.epoch, time.perf_counter())
        return EpochIterator(
            run.pipeline, run.stager, run.meter, run.trace, standing, self._equal_steps, self
        )

    def __len__(self) -> int:
        """The exact number of batches that this consumer yields in the epoch at hand.

        That is the one being iterated, else the next one; after a resume in mid-epoch, what is
        left of it.
        """
        if self._standing is not None and self._standing.alive:
            return self._standing.part.size
        return self._the_order().part(self._epoch).size

    def size_of(self, epoch: int, first_batch: int = 0) -> tuple[int, int]:
        """``(batches, samples)`` of this consumer in an epoch, from batch `first_batch` on.

        In the epoch that a loaded state stands in, what was delivered before doesn't count.
        """
        return self._planned().size_of(epoch, first_batch)

    def set_epoch(self, epoch: int) -> None:
        """The next `iter` gives this epoch. Raises `ConfigError` unless it is 0 or more."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            refuse("epoch", epoch, "give a whole number, 0 or more")
        self._epoch = epoch

    # ---- what a script may ask

    @property
    def seed(self) -> int | None:
        """The seed in use; None as long as it is to be agreed on in `start()`."""
        return self._seed

    @property
    def nb_consumer(self) -> int:
        """Training processes of the run."""
        return self._config.nb_consumer

    @property
    def nb_samples(self) -> int | None:
        """Length of the dataset, None for a stream; builds it where nobody has."""
        if self._length is None:
            self._length = (count_samples(self._unpacked_recipe()),)
        return self._length[0]

    def stats(self) -> LoaderStats:
        """What the loader has done so far. Raises `ClosedError` before `start()`."""
        if self._run.meter is None:
            raise ClosedError("there are no figures before start()")
        return self._run.meter.snapshot()

    # ---- resume

    def state_dict(self) -> dict[str, Any]:
        """Where this consumer is: small, versioned, JSON-able. Costs nothing worth measuring.

        Counts the batches that the training loop got, whatever was prefetched. With equal steps,
        one consumer's state stands for all; see `load_state_dict`.
        """
        if isinstance(self._loaded, Mapping):  # not applied yet: the dataset's length is not known
            return dict(self._loaded)
        self._apply_state()
        order, standing = self._the_order(), self._standing
        if standing is None or not standing.alive:
            standing = Standing(order.part(self._epoch))  # at the beginning of what comes next
        return order.capture(standing.part, standing.taken, standing.streams)

    def state_at(self, epoch: int, first_batch: int) -> dict[str, Any]:
        """The state of a loader that has delivered all batches before `first_batch` of `epoch`.

        Raises `ClosedError` where that can't be told: batches out of order, a stream, a sampler.
        """
        if not self._config.in_order:
            raise ClosedError("with in_order=False, only state_dict() knows what was delivered")
        return self._planned().state_at(epoch, first_batch)

    def load_state_dict(self, state: State) -> None:
        """Go on where `state_dict()` was taken; the next `iter` gives what was left.

        With the same set-up the rest is exactly that of the undisturbed run. Another number of
        consumers or workers, or another batch size, is fine too: what was left of the epoch comes
        exactly once over all new consumers. Give the list of all old consumers' states where they
        had not made equal steps (first-ready delivery, or consumers that don't wait for each
        other).

        Raises `StateError` when it is no state, or when the dataset's length, the seed or the
        shuffle differ (here, or in `start()` if the length is known only then).
        """
        self._run.check_open()
        seed = saved_seed(state)
        if self._seed is None:  # none was asked for: the one that the run began with
            self._seed, self._order = seed, None
        self._loaded = state
        if self._length is not None:
            self._apply_state()
        if self._standing is not None:
            self._standing.overtaken = True
        if self._run.started:
            self._prefetch()

    # ---- inside

    def _the_order(self) -> Order:
        """Which batches come; made when it is first asked for, since the length may be unknown."""
        if self._order is None:
            config = self._config
            seed = FIXED_SEED if self._seed is None else self._seed
            consumers = config.nb_consumer
            nb_samples = self.nb_samples
            if config.equal_steps:
                check_equal_steps(nb_samples)
            if nb_samples is None:
                seeds = Plan(2**62, config.batch_size, consumers, False, 0, seed, config.tail)
                self._check_stream()
                self._order = StreamOrder(seeds, self._consumer, config.worker_per_consumer)
            elif self._sampled is not None:
                # Good for any batch number, and asked for seeds only.
                seeds = Plan(2**62, 1, consumers, False, 0, seed)
                self._order = SampledOrder(*self._sampled, seeds, self._consumer)
            else:
                plan = Plan(
                    nb_samples,
                    config.batch_size,
                    consumers,
                    config.shuffle,
                    config.nearby_shuffle,
                    seed,
                    config.tail,
                )
                self._order = PlannedOrder(plan, self._consumer)
        return self._order

    def _check_stream(self) -> None:
        """A stream has no positions: refuse what needs them. Raises `ConfigError`."""
        config = self._config
        if config.shuffle:
            refuse("shuffle", True, "a stream can't be shuffled here; shuffle in the dataset")
        if self._sampled is not None:
            refuse("sampler", "…", "a stream has no indices; leave it out")
        if self._sources or config.auto_workers:
            refuse(
                "worker_per_consumer",
                "auto" if config.auto_workers else config.worker_per_consumer,
                "the shards of a stream belong to local workers: give their number, and no "
                "remote_workers",
            )

    def _facts(self) -> dict[str, Any]:
        """What all consumers must agree on."""
        plan, *_ = self._the_order().plans().values()
        return {
            **plan.fingerprint(),
            "sampler": self._sampled is not None,
            "equal_steps": self._config.equal_steps,
        }

    def _planned(self) -> PlannedOrder:
        order = self._the_order()
        if not isinstance(order, PlannedOrder):
            raise ClosedError("a loader of a stream or with a sampler of yours can't tell sizes")
        return order

    def _apply_state(self) -> None:
        if self._loaded is not None:
            loaded, self._loaded = self._loaded, None  # what is refused leaves all as it was
            self._order, self._epoch = self._the_order().resumed(loaded)
            self._applied = loaded

    def _prefetch(self) -> None:
        """Have the first batches made before anybody asks for them."""
        pipeline = self._run.pipeline
        self._apply_state()
        order = self._the_order()
        for plan_id, plan in order.plans().items():
            pipeline.set_plan(plan_id, plan)
        pipeline.prefetch(order.part(self._epoch), order)

    def _unpacked_recipe(self) -> Recipe:
        size = os.fstat(self._run.payload_fd).st_size
        return Recipe(**unpack(memoryview(map_private(self._run.payload_fd, size))))

    def _check_consumer_index(self, index: int) -> None:
        count = self._config.nb_consumer
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
            refuse("consumer_index", index, f"give a whole number in [0, {count}): the rank")


def _device(device: torch.device | str | None) -> torch.device | None:
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        refuse("device", device, "give a torch.device, or a string such as 'cuda:0'")
    if found.type != "cuda":
        return found
    count = torch.cuda.device_count()
    if not count:
        refuse("device", device, "torch finds no CUDA device in this process; see torch.cuda")
    index: int | None = found.index  # torch's types say that it is always there
    if index is None:  # the thread that copies has a current device of its own
        return torch.device("cuda", torch.cuda.current_device())
    if index >= count:
        refuse("device", device, f"there are {count} CUDA devices; see CUDA_VISIBLE_DEVICES")
    return found
