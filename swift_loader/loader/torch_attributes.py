"""What libraries read of a `torch.utils.data.DataLoader`, under its names."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, Sampler, default_collate, default_convert

from swift_loader.batch.wrapped import calls_of, kinds_of
from swift_loader.errors import ClosedError, ConfigError
from swift_loader.loader.as_built import BUILT, STARTED, settings_of, warn_if_changed
from swift_loader.loader.engine import Engine
from swift_loader.loader.options import Config
from swift_loader.loader.own_epoch import OwnEpoch
from swift_loader.order.order import Order
from swift_loader.order.part import EpochPart
from swift_loader.order.planned import PlannedOrder
from swift_loader.order.told import inner_of, inner_part
from swift_loader.ranks.agreement import is_collective, own_index
from swift_loader.sources.mixture import Mixture
from swift_loader.worker.recipe import given

if TYPE_CHECKING:
    from swift_loader.loader.loader import SwiftLoader

__all__ = ["Dataset", "TorchAttributes"]


_MANY = 100  # of a longer list, as may be given to a class, all are alike


class Dataset:
    """The data set of a loader, which keeps none: what is large would be in memory twice.

    It is the user's own object as long as the user has it. Otherwise it is built from the recipe,
    whose arrays are views over the workers' shared memory, when somebody asks. Until the start, one
    that is not too large is kept, as workers are given what it is then.
    """

    def __init__(self, config: Config, engine: Engine) -> None:
        self._engine = engine
        self._functions = config.transform, config.collate_fn
        self._kept: Any = None
        self._built: Any = None
        self._own: Callable[[], Any] = _nothing
        self._own_epoch = OwnEpoch()
        self._of_object: frozenset[str] = frozenset()  # methods of the object alone
        self._kinds = _kinds(config)
        factory = config.dataset_class
        self.name = getattr(factory, "__qualname__", None) or type(factory).__qualname__
        if factory is given:
            own = config.dataset_kwargs["dataset"]
            self.name = type(own).__qualname__
            self._kept = own if engine.sees_changes else None
            self._of_object = frozenset(n for n, v in _attributes(own).items() if callable(v))
            try:
                self._own = weakref.ref(own)
            except TypeError:  # a list, a tuple: nobody can refer to it without keeping it
                self._own = _nothing

    def may_have(self, method: str) -> bool:
        """Whether it, or what it wraps, has this method, as far as that is known without it."""
        own = self._built if self.own() is None else self.own()
        if own is not None:
            return bool(calls_of(own, method))
        if not self._kinds or method in self._of_object:
            return True
        return any(
            hasattr(kind, "__getattr__") or callable(getattr(kind, method, None))
            for kind in self._kinds
        )

    def get(self) -> Any:
        """Raises what the data set's constructor raises."""
        own = self.own()
        if own is not None:
            return own
        if self._built is None:
            recipe = self._engine.recipe()
            self._built = recipe.dataset_class(**recipe.dataset_kwargs)
        return self._built

    def own(self) -> Any:
        """The user's own object; None where it is gone, or there was only a class."""
        return self._own() if self._kept is None else self._kept

    @property
    def is_in_hands(self) -> bool:
        """Whether the script may have the object that `get` gives, and may have changed it."""
        return self._built is not None or self.own() is not None

    def let_go(self) -> None:
        """Nothing is started from it any more."""
        self._kept = None

    def start(self, is_told: bool) -> Any:
        """Workers are to start: give them the object as it is now, or warn if that can't be.

        `is_told`: the script has asked for calls of it. Returns the object, if it may be another
        one than it was.
        """
        own, shipped = self.own(), self._engine.shipped
        self.let_go()
        if shipped is None:
            return own
        is_given = own is not None and self._engine.ship_again(own)
        if not is_given and not is_told and shipped.settings is not None:
            warn_if_changed(shipped.settings, own, *self._functions, since=BUILT)
        shipped.settings = settings_of(own, *self._functions)
        return own if is_given else None

    def epoch_begins(self, epoch: int, is_told: bool) -> None:
        """Warn of what the script has changed, or told its own object, that workers don't see."""
        own, shipped = self.own(), self._engine.shipped
        if own is not None:
            self._own_epoch.check(own, epoch)
        if shipped is not None and shipped.settings is not None:
            known = settings_of(own, *self._functions) if is_told else shipped.settings
            shipped.settings = warn_if_changed(known, own, *self._functions, since=STARTED)


def _kinds(config: Config) -> frozenset[type]:
    """The classes of the data set and of what it wraps, as far as they are known.

    There are none if a function makes one of the data sets. What a wrapper makes by itself is left
    out.
    """
    factory, kwargs = config.dataset_class, config.dataset_kwargs
    if isinstance(factory, Mixture):
        parts = factory.ingredients
        makers = [one.build for one in parts if not one.is_built]
        held = [thing for one in parts for thing in (one.build, one.transform)]
        values = [value for one in parts for value in (one.kwargs or {}).values()]
    else:
        makers = held = [] if factory is given else [factory]
        values = list(kwargs.values())
    if not all(isinstance(one, type) for one in makers):
        return frozenset()
    for value in values:  # `datasets` is a list
        held = [*held, *(value[:_MANY] if isinstance(value, (list, tuple)) else [value])]
    return kinds_of(*held)


def _attributes(own: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = getattr(own, "__dict__", {})
    return attributes


def _nothing() -> None:
    return None


class TorchAttributes:
    """The attributes of a `DataLoader` that say what it does."""

    _config: Config
    _dataset: Dataset

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(getattr(type(self), name, None), property):
            raise ConfigError(  # a ValueError, as torch's
                f"{name} can't be changed in a loader that is built; build another, or take "
                f"loader.with_options({name}=...)"
            )
        super().__setattr__(name, value)

    @property
    def dataset(self) -> Any:
        """The data set. If you gave its class, the loader builds one in this process now."""
        return self._dataset.get()

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch, per consumer. None with a batch sampler, and without batches."""
        config = self._config
        batched = config.batch_sampler is None and config.auto_collation
        return config.batch_size if batched else None

    @property
    def sampler(self) -> Any:
        """Your sampler, or one that gives the indices of this consumer's current epoch."""
        if self._config.sampler is not None or self._config.batch_sampler is not None:
            return self._config.sampler
        return PlanSampler(self)  # type: ignore[arg-type]

    @property
    def batch_sampler(self) -> Any:
        """Your batch sampler, or one that gives the batches of indices of the current epoch. None
        without batches.
        """
        config = self._config
        if config.sampler is not None and config.auto_collation:
            return BatchSampler(config.sampler, config.batch_size, self.drop_last)
        if config.sampler is not None or config.batch_sampler is not None:
            return config.batch_sampler
        if not config.auto_collation:
            return None
        return PlanBatchSampler(self)  # type: ignore[arg-type]

    @property
    def num_workers(self) -> int:
        """Worker processes of this consumer. With "auto": the most that there may be."""
        return self._config.worker_per_consumer

    @property
    def drop_last(self) -> bool:
        """Whether batches that are not full are left out."""
        return self._config.tail == "drop"

    @property
    def collate_fn(self) -> Callable[[list[Any]], Any]:
        """Your function, or torch's `default_collate` (without batches, its `default_convert`); the
        built-in one gives the same batches.
        """
        if self._config.collate_fn is not None:
            return self._config.collate_fn
        return default_collate if self._config.auto_collation else default_convert

    @property
    def worker_init_fn(self) -> Callable[[int], None] | None:
        """Your function, or None."""
        return self._config.worker_init_fn

    @property
    def generator(self) -> torch.Generator | None:
        """Your generator, or None."""
        return self._config.generator

    @property
    def timeout(self) -> float:
        """The option, in seconds; 0 for no limit."""
        return self._config.timeout or 0

    @property
    def prefetch_factor(self) -> int | None:
        """Batches that each worker makes ahead; None without workers."""
        workers = self._config.worker_per_consumer
        return max(1, self._config.data_queue_size // workers) if workers else None

    @property
    def in_order(self) -> bool:
        """Whether batches come in their order, and not as soon as they are ready."""
        return self._config.in_order

    @property
    def pin_memory(self) -> bool:
        """Whether batches that stay on the CPU lie in page-locked memory."""
        return self._config.pin_memory

    @property
    def pin_memory_device(self) -> str:
        """The device for which `pin_memory` locks pages; "" is the current one."""
        return self._config.pin_memory_device

    @property
    def persistent_workers(self) -> bool:
        """Whether workers stay for all epochs. If there are workers, they do."""
        return self._config.worker_per_consumer > 0

    @property
    def multiprocessing_context(self) -> None:
        """None: workers are not started by `multiprocessing`."""
        return None


class _OfPlan:
    """This consumer's part of the epoch that is being iterated, else of the next one."""

    def __init__(self, loader: SwiftLoader) -> None:
        self.loader = loader

    def set_epoch(self, epoch: int) -> None:
        """The loader's next `iter` gives this epoch."""
        self.loader.set_epoch(epoch)

    def _check_known(self) -> None:
        """Raises `ClosedError` where only the start can tell which indices this consumer gets."""
        loader = self.loader
        nb_consumer = loader.nb_consumer
        if loader.started or nb_consumer == 1:
            return
        if own_index(nb_consumer) is None:
            raise ClosedError(
                f"which of the {nb_consumer} consumers (nb_consumer) this process is, nobody has "
                "said yet: call start(consumer_index, device) before you ask for its indices"
            )
        is_drawn = loader._config.shuffle or loader._config.mixing is not None
        if is_drawn and loader.seed is None and is_collective(nb_consumer):
            raise ClosedError(
                "the ranks agree on the seed in start(): call it before you ask for the indices of "
                "a shuffle, or give seed="
            )

    def _at_hand(self) -> tuple[Order, EpochPart]:
        part = inner_part(self.loader._part_at_hand())
        order = inner_of(self.loader._the_order())
        if not order.known_ahead:
            raise TypeError("a stream has no indices")
        return order, part

    def _batches(self) -> Iterator[list[int]]:
        order, part = self._at_hand()
        self._check_known()
        return (order.samples(number, details) for number, details in order.batches(part))


class PlanSampler(_OfPlan, Sampler[int]):
    """The indices of the epoch's samples, in the order in which they come."""

    def __iter__(self) -> Iterator[int]:
        for batch in self._batches():
            yield from batch

    def __len__(self) -> int:
        order, part = self._at_hand()
        if isinstance(order, PlannedOrder):  # without making its batches
            return order.size_of(part.epoch, 0)[1]
        return sum(map(len, self._batches()))


class PlanBatchSampler(_OfPlan, BatchSampler):
    """The same in batches."""

    def __init__(self, loader: SwiftLoader) -> None:
        self.loader = loader
        self.sampler = PlanSampler(loader)
        self.batch_size = loader._config.batch_size
        self.drop_last = loader.drop_last

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches()

    def __len__(self) -> int:
        return len(self.loader)
