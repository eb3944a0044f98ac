"""`SwiftLoader`: what a training script holds."""

from __future__ import annotations

import inspect
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from swift_loader.errors import ClosedError, refuse
from swift_loader.loader.bar import Bar
from swift_loader.loader.checks import (
    check_adapted,
    check_no_loader,
    check_told_of_ranks,
    consumer_number,
    epoch_number,
    function,
    only_asks,
    optional,
)
from swift_loader.loader.construction import Construction
from swift_loader.loader.engine import Engine
from swift_loader.loader.epoch import EpochIterator, Standing, gone_on
from swift_loader.loader.last_step import warn_if_not_told
from swift_loader.loader.meshes import started
from swift_loader.loader.mixtures import counting_sources, warn_of_other_mixture
from swift_loader.loader.options import Config, parameters_text
from swift_loader.loader.orders import check_one_stands, facts_of, order_of, sampling_of
from swift_loader.loader.seeds import chosen_seed, default_seed, seed_of
from swift_loader.loader.seen import Seen
from swift_loader.loader.signature import Batch_co
from swift_loader.loader.static_buffers import StaticBuffers
from swift_loader.loader.stream_sizes import StreamSizes
from swift_loader.loader.target import Target
from swift_loader.loader.torch_attributes import Dataset, TorchAttributes
from swift_loader.loader.who_splits import decided_by_all, look_at
from swift_loader.order.order import Order
from swift_loader.order.part import EpochPart, Taken
from swift_loader.order.state import State, saved_consumer, saved_seed
from swift_loader.order.told import call_as_text, has_calls, resumed, told, with_call
from swift_loader.ranks.agreement import (
    SAMPLES,
    agree_on_plan,
    agree_on_seed,
    is_collective,
    own_index,
)
from swift_loader.ranks.equal_steps import EqualSteps, check_equal_steps, check_ranks
from swift_loader.ranks.mesh import check_slice, consumer_of
from swift_loader.transport.slots import OnMap
from swift_loader.worker.recipe import Size

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SwiftLoader"]

_LARGE = ("dataset_class", "dataset", "dataset_kwargs")


class SwiftLoader(Construction[Batch_co], TorchAttributes, Seen[Batch_co]):
    """Makes the batches of a data set in worker processes, for one or several training processes.

    Each training process (consumer) builds a loader with the same arguments, calls
    `start(consumer_index, device)`, and iterates the loader once for each epoch. Exactly one
    consumer gets each sample, and all consumers make the same number of steps (see `tail`).

    ``SwiftLoader[Batch]`` is a loader whose batches are of type `Batch`; see
    `swift_loader.loader.signature`. `swift_loader.loader.options` defines the options.

    Raises
    ------
    ConfigError
        An option is wrong. The error names the option, the value and the fix.
    ShippingError
        Something can't travel to the workers. The error names it.
    Exception
        With `validate`, whatever the data set, `collate_fn` or `batch_encoder` raise.
    """

    def _set_up(
        self, given: dict[str, Any], like: Engine | None = None, out_of_it: bool = False
    ) -> None:
        check_no_loader(given, SwiftLoader)
        config = Config.of(given)
        self._given = {name: value for name, value in given.items() if name not in _LARGE}
        self._sampling = sampling_of(config)
        self._seed = chosen_seed(config.seed)
        self._look = look_at(config)
        self._splits = self._look.decided(config.nb_consumer)
        self._engine = Engine(config, like, out_of_it)
        self._dataset = Dataset(config, self._engine)
        self._config = config = config.without_dataset()
        # Closes at the interpreter's end too, and must hold nothing that holds the loader.
        self._finalizer = weakref.finalize(self, self._engine.close)
        self._nb_samples: int | None = None  # of a stream, and as long as it is not known
        self._lengths: tuple[int, ...] = ()  # of the sources of a mixture
        self._length_is_known = False
        self._said_sizes = StreamSizes(config)
        if config.validate and not config.in_process:
            try:
                self._learn_length(self._engine.try_one_batch())
            except BaseException:
                self._finalizer()
                raise
        self._equal_steps: EqualSteps | None = None
        static = self._config.device_buffers == "static"
        self._buffers = StaticBuffers() if static else None
        self._cut: Callable[[Any], Any] | None = None  # takes this rank's part of a batch
        self._hand_on: OnMap | None = None  # set by `swift_loader.loader.handing_on`
        self._starting = threading.RLock()  # several threads may begin to iterate
        self._consumer = 0
        # Accelerate must not deal the samples out among the ranks a second time.
        self._is_accelerate_prepared = config.nb_consumer > 1
        self._tells_its_end = False  # to accelerate, by an adapter
        self._epoch = 0  # the one that the next `iter` gives
        self._order: Order | None = None
        self._calls: tuple[str, ...] = ()  # of the data set, since a state was loaded
        self._loaded: State | None = None  # not applied yet
        self._applied: State | None = None
        self._standing: Standing | None = None

    # ---- the life of a loader

    def start(
        self,
        consumer_index: int | None = None,
        device: torch.device | str | None = None,
        to_device: Callable[[Any, torch.device], Any] | None = None,
        *,
        mesh: Any = None,
        context_slice: tuple[int, int, int] | None = None,
    ) -> None:
        """Start this consumer's workers. Returns when the first of them is ready.

        Parameters
        ----------
        consumer_index:
            Which consumer this process is, in ``[0, nb_consumer)``: its rank. Not needed with one
            consumer, or where `torch.distributed` (or what `torchrun` sets in the environment)
            tells the rank and there are as many ranks as consumers.
        device:
            The loader moves batches to this device ahead of the loop. None or the CPU: they stay
            in shared memory.
        to_device:
            ``(batch, device) -> batch``, in place of the loader's own move, which goes through
            nested containers.
        mesh:
            In place of `consumer_index`: the dimension of a `torch.distributed.DeviceMesh` along
            which ranks get different batches, such as ``device_mesh["dp"]``. Ranks at the same
            place in it (a tensor- or context-parallel group) get the same batches. On one host,
            such a group has one set of workers and one copy of a batch. All ranks must call this.
        context_slice:
            ``(dim, i, n)``: this rank gets part `i` of `n` of each tensor and array, along `dim`,
            as a view. A tensor that does not have this dimension comes whole.

        Raises
        ------
        ConfigError
            `consumer_index` is out of range, or another argument is wrong.
        ClosedError
            The loader was started before, or closed.
        PlanMismatchError
            With `torch.distributed` initialised: the ranks' arguments differ.
        Exception
            What the data set's constructor raised in a worker, with the worker's traceback.
        """
        engine = self._engine
        engine.check_open()
        if engine.started:
            raise ClosedError("start() was called before; one loader is one consumer")
        if mesh is not None:
            consumer_index = consumer_of(mesh, consumer_index, self.nb_consumer)
        elif not self._config.by_sampler:  # not before: an adapter may tell a loader of the ranks
            check_told_of_ranks("nb_consumer" in self._given)
        consumer_index = consumer_number(consumer_index, self._config.nb_consumer)
        optional(function)("to_device", to_device)
        piece = check_slice(context_slice)
        if self._config.equal_steps:
            check_ranks(self._config.nb_consumer, mesh is not None)
        dataset = self._dataset.start(bool(self._calls))
        if dataset is not None:
            self._look = look_at(self._config.with_dataset(dataset))
        target = Target.of(self._config, device, to_device, self._hand_on, piece)
        self._cut = target.cut
        self._consumer = consumer_index
        collective = mesh is not None or is_collective(self._config.nb_consumer)
        if self._config.generator is not None:  # which the script may have seeded since
            self._seed = seed_of(self._config.generator)
        if self._seed is None:
            self._seed = agree_on_seed() if collective else default_seed(self.nb_consumer)
        self._splits = decided_by_all(self._look, self.nb_consumer, collective)
        self._said_sizes.clear()
        # What was asked before, may have been asked as another consumer, or of another seed.
        self._order_anew()
        failure: BaseException | None = None
        size: Size | None = None
        try:
            try:
                start = partial(engine.start, consumer_index, self._seed, target, self._splits)
                if mesh is None:
                    size = start()
                else:
                    decoder, look = target.decode_with(), self._look
                    size = started(consumer_index, self._config, decoder, look, start)
                if size is not None:  # else another rank could not start, as all ranks learn now
                    self._learn_length(size)
                    self._the_order()
                    self._apply_state()
            except BaseException as error:
                failure = error
                raise
            finally:
                if collective and not isinstance(failure, KeyboardInterrupt):
                    known = failure is None and size is not None
                    facts = {**self._facts(), SAMPLES: self._look.samples} if known else {}
                    agree_on_plan(facts, failure)
            if self._config.equal_steps and collective:
                self._equal_steps = EqualSteps(self._config.timeout)
                weakref.finalize(self, self._equal_steps.close)
            engine.observe(self._facts(), self._dataset.name)
            self._prefetch()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all workers and threads, now. Batches that you hold stay valid; twice is fine."""
        self._finalizer()
        self._dataset.let_go()
        self._buffers = None
        if self._equal_steps is not None:
            self._equal_steps.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- iterating

    def __iter__(self) -> Iterator[Batch_co]:
        """The next epoch, from its beginning (or from where a loaded state stands).

        If you have not called `start()`, this does it, without a device. That takes one consumer,
        or `torch.distributed` (or `torchrun`) with as many ranks as there are consumers.

        Raises `ClosedError` if there are several consumers and nothing says which this one is.
        """
        if only_asks(sys._getframe(1).f_globals.get("__name__", "")):
            self._engine.check_open()
            return iter(())
        wanted = self._config.progress and self._consumer == 0
        return self._iterate({} if wanted else None)

    def _iterate(self, bar: dict[str, Any] | None) -> Iterator[Batch_co]:
        engine = self._engine
        engine.check_open()
        with self._starting:
            if not engine.started:
                self.start()
        assert engine.meter is not None
        order = self._the_order()
        taken = gone_on(self._standing, order.begin(self._epoch))
        part = taken.part
        self._dataset.epoch_begins(part.epoch, has_calls(order))
        if not self._tells_its_end:
            warn_if_not_told(part)
        if self._standing is not None:
            self._standing.overtaken = True
        if self._equal_steps is not None:
            self._equal_steps.begin(part.epoch)
        standing = self._standing = Standing(taken)
        standing.count_sources = counting_sources(order, engine.meter)
        standing.cut = self._cut
        if self._said_sizes and self.nb_samples is None:
            standing.said_size = self._left_of_stream(part)
        engine.pipeline.begin(part, order)
        if engine.stager is not None:
            engine.stager.begin(part)
        self._epoch += 1
        engine.meter.epoch_begins(part.epoch, time.perf_counter())
        return EpochIterator(
            engine.pipeline,
            engine.stager,
            engine.meter,
            engine.trace,
            standing,
            self._equal_steps,
            self._buffers,
            self,
            None if bar is None else Bar(engine.meter, self._length_if_known(), bar),
        )

    def _length_if_known(self) -> int | None:
        try:
            return len(self)
        except TypeError:  # a stream, or a sampler, without a length
            return None

    def __len__(self) -> int:
        """The exact number of batches that this consumer yields in the current epoch.

        The current epoch is the one that is being iterated, else the next one. After a resume in
        mid-epoch, it is what is left of that epoch. For a stream, the number follows from the
        stream's own `__len__`, as in torch; the loader warns if more batches come. If the loader
        splits the stream, each consumer has its part of that number.

        Raises `TypeError` for a stream or a sampler without a length.
        """
        part = self._part_at_hand()
        if self.nb_samples is not None:
            return part.size
        size = self._left_of_stream(part)
        if self._standing is not None:
            self._standing.said_size = size
        return size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next `iter`. Raises `ConfigError` unless it is 0 to 2^62."""
        self._epoch = epoch_number("epoch", epoch)

    def call_dataset(self, method: str, *arguments: Any) -> None:
        """Call a method of the data set, in every worker, from the next `iter` on.

        Workers make all batches of that epoch and of later ones after the call. They make batches
        again that they had made ahead without it. Workers that start later call the method too, and
        so does a run that resumes from a state. Where a wrapper (such as `Subset`) or a `Mixture`
        has no such method, workers call it of each data set and `transform` inside that has it.
        Every consumer must ask for the same calls. The number of samples must not change. Workers
        start with the data set as it is at `start()`: what you did to your own object before that
        is not undone.

        Raises
        ------
        ConfigError
            There is no such method, or an argument is not plain data. Plain are numbers, strings,
            bytes, tuples, lists, sets, dicts, arrays and tensors.
        """
        self._engine.check_open()
        if not self._dataset.may_have(method):
            refuse("method", method, f"a {self._dataset.name} has no such method, nor has what it "
                   "was given")  # fmt: skip
        text = call_as_text(method, arguments)
        if self._order is not None:
            self._order = with_call(self._order, text)
        self._calls = (*self._calls, text)
        if self._engine.started:
            self._tell_plans()
            if self._standing is None or not self._standing.alive:
                self._prefetch()

    # ---- what a script may ask

    @property
    def seed(self) -> int | None:
        """The seed in use; None before `start()` if the ranks have yet to agree on one."""
        return self._seed

    @property
    def nb_consumer(self) -> int:
        """How many training processes the run has."""
        return self._config.nb_consumer

    @property
    def nb_samples(self) -> int | None:
        """Length of the data set; None for a stream."""
        self._ask_length_again()
        if not self._length_is_known:
            self._learn_length(self._engine.count_samples())
        return self._nb_samples

    # ---- resume

    def state_dict(self) -> dict[str, Any]:
        """Where this consumer is in the run: a small dict that JSON takes, with a version.

        It counts the batches that the training loop got, not those that workers have made ahead. If
        all consumers made equally many steps, one consumer's state stands for all.
        """
        if isinstance(self._loaded, Mapping):  # not applied yet: the dataset's length is not known
            return dict(self._loaded)
        self._apply_state()
        order, standing = self._the_order(), self._standing
        check_one_stands(sys._getframe(1).f_globals.get("__name__", ""), order, self._config)
        if standing is None or not standing.alive:
            # The beginning of what comes next.
            return order.capture(gone_on(standing, Taken(order.part(self._epoch))))
        over = self._engine.pipeline.shards_over(standing.taken.part.epoch)
        if over is not None:
            standing.taken.pass_over(over)
        return order.capture(standing.taken)

    def load_state_dict(self, state: State) -> None:
        """Go on where `state_dict()` was taken. The next `iter` gives the rest of that epoch.

        With the same arguments, the rest is exactly that of the undisturbed run. The number of
        consumers or workers and the batch size may differ: the rest of the epoch then comes exactly
        once over all new consumers. If the old consumers had not made equally many steps (for
        instance with ``in_order=False``), give the list of all their states.

        Raises `StateError` if it is not a state, or if the data set's length, the seed or the
        shuffle differ (here, or in `start()` if the length is known only then). Raises
        `ClosedError` if Lightning's Trainer calls it without the adapter
        `swift_loader.integrations.lightning.for_trainer`, as it would count batches wrongly.
        """
        self._engine.check_open()
        check_adapted(sys._getframe(1).f_globals.get("__name__", ""))
        seed = saved_seed(state)
        if self._seed is None:  # none was asked for: the one that the run began with
            self._seed, self._order = seed, None
        if not self._engine.started:  # until `start()` tells, it is that of the state
            self._consumer, self._order = saved_consumer(state, self.nb_consumer), None
        self._loaded = state
        self._calls = ()  # the state has those before it
        if self._length_is_known:
            self._apply_state()
        if self._standing is not None:
            self._standing.overtaken = True
        if self._engine.started:
            self._prefetch()

    # ---- inside

    def _left_of_stream(self, part: EpochPart) -> int:
        by = self._splits.by
        return self._said_sizes.left(part, self._dataset.get, self._consumer, by)

    def _the_order(self) -> Order:
        """Which batches come; made when it is first asked for, since the length may be unknown."""
        if self._order is None:
            seed = default_seed(self.nb_consumer) if self._seed is None else self._seed
            size = Size(self.nb_samples, self._lengths)
            order = order_of(self._config, size, self._sampling, seed, self._consumer)
            self._order = told(order, self._calls, ahead=self._config.prefetch_epochs > 0)
        return self._order

    def _part_at_hand(self) -> EpochPart:
        """That of the epoch that is being iterated, else of the next one."""
        self._be_consumer_of_rank()
        self._apply_state()
        if self._standing is not None and self._standing.alive:
            return self._standing.taken.part
        return self._the_order().part(self._epoch)

    def _be_consumer_of_rank(self) -> None:
        """Until the start, it is the one that the start will find, where that is known."""
        known = None if self._engine.started else own_index(self.nb_consumer)
        if known is not None and known != self._consumer:
            self._consumer = known
            self._order_anew()

    def _facts(self) -> dict[str, Any]:
        by_one = self._config.in_order and not isinstance(self._applied, (list, tuple))
        return facts_of(self._the_order(), self._config, self._epoch, by_one)

    def _order_anew(self) -> None:
        self._order = None
        self._loaded = self._loaded or self._applied

    def _ask_length_again(self) -> None:
        """Until the start, it is what the user's own object says: workers are given that."""
        own = None if self._engine.started else self._dataset.own()
        if own is not None and self._engine.sees_changes:
            size = self._engine.size_of(own)
            if not self._length_is_known or size != (self._nb_samples, self._lengths):
                self._learn_length(size)
                self._order_anew()

    def _learn_length(self, size: Size) -> None:
        self._nb_samples, self._lengths = size
        self._length_is_known = True
        if self._config.equal_steps:
            check_equal_steps(size.nb_samples)

    def _apply_state(self) -> None:
        self._ask_length_again()
        if self._loaded is not None:
            loaded, self._loaded = self._loaded, None  # what is refused leaves all as it was
            ahead = self._config.prefetch_epochs > 0
            self._order, self._epoch = resumed(self._the_order(), loaded, self._calls, ahead=ahead)
            self._applied = loaded
            warn_of_other_mixture(self._order)

    def _prefetch(self) -> None:
        """Have the first batches made before anybody asks for them."""
        self._apply_state()
        self._tell_plans()
        order = self._the_order()
        if order.known_ahead:
            self._engine.pipeline.prefetch(order.part(self._epoch), order)

    def _tell_plans(self) -> None:
        for plan_id, plan in self._the_order().plans().items():
            self._engine.pipeline.set_plan(plan_id, plan)


if SwiftLoader.__doc__ is not None:  # `python -OO` drops it
    # Since Python 3.13 it has no indentation, before it has.
    SwiftLoader.__doc__ = f"{inspect.cleandoc(SwiftLoader.__doc__)}\n\n{parameters_text()}"
