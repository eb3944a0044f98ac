"""A `SwiftLoader` with Hugging Face accelerate, which learns of it when an epoch ends.

```python
loader = SwiftLoader(Digits, {"train": True}, 32)
loader = for_accelerate(loader, accelerator)     # where accelerator.prepare(...) would stand
```

``accelerator.prepare`` takes nothing but torch's own `DataLoader`: it deals out that loader's
samples and moves its batches. A `SwiftLoader` does both by itself. But `accumulate` and
`gather_for_metrics` ask the loader that is being iterated whether its last batch is out, and how
many samples of that are no repeats. What `for_accelerate` returns tells them, as a prepared loader
does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

import torch
from accelerate.data_loader import DataLoaderShard
from accelerate.state import GradientState
from torch.utils.data import IterableDataset

from swift_loader.errors import StateError, refuse
from swift_loader.integrations.consumers import has_its_own_state, in_place_of, with_consumers
from swift_loader.loader.epoch import EpochIterator
from swift_loader.loader.last_step import (
    may_be_padded,
    nb_once_in_last_step,
    next_epoch,
    tells_its_end,
)
from swift_loader.loader.loader import SwiftLoader
from swift_loader.ranks.agreement import of_all_ranks

__all__ = ["AccelerateLoader", "for_accelerate"]


def _asker() -> str:
    """The module that asks for an attribute."""
    return str(sys._getframe(2).f_globals.get("__name__", ""))


def _as_it_is(batch: Any) -> Any:
    return batch


#: attributes of a `DataLoader` over batches that are made already
_OF_BATCHES = {
    "dataset": None,
    "batch_size": None,
    "drop_last": False,
    "collate_fn": _as_it_is,
    "num_workers": 0,
    "prefetch_factor": None,
    "persistent_workers": False,
    "timeout": 0,
    "pin_memory": False,
    "generator": None,
}


class _Accelerator(Protocol):
    @property
    def num_processes(self) -> int: ...
    @property
    def process_index(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def device_placement(self) -> bool: ...
    @property
    def even_batches(self) -> bool: ...
    @property
    def split_batches(self) -> bool: ...


def for_accelerate(loader: SwiftLoader[Any], accelerator: _Accelerator) -> AccelerateLoader:
    """Start `loader` as the consumer of this process, with batches on its device.

    Returns what to use as the loader. ``accelerator.prepare`` leaves it as it is.

    A loader that was started before stays as it is. If it was not told of `nb_consumer` and there
    are several processes, a loader with as many consumers takes its place. With ``nb_consumer=1``,
    each process gets all of its data set. If it was not told of `tail`, the one that takes its
    place has ``tail="pad"``, so that the last batches of all processes have the same size, which
    `gather_for_metrics` needs; unless accelerate has ``even_batches=False``.

    Raises `ConfigError` if the loader has another number of consumers, or a sampler that is made
    for one process, or if accelerate has ``split_batches=True`` and several processes. And what
    `start` raises.
    """
    if isinstance(loader, AccelerateLoader):
        return loader
    nb_processes = accelerator.num_processes
    if nb_processes > 1 and accelerator.split_batches:
        refuse(
            "split_batches",
            True,
            "the batch size of a SwiftLoader is that of one process: leave split_batches out, and "
            f"give the loader the batch size divided by {nb_processes}",
        )
    pads = accelerator.even_batches and nb_processes > 1 and may_be_padded(loader)
    others = {"tail": "pad"} if pads else {}
    given, loader = loader, with_consumers(loader, nb_processes, "accelerate", **others)
    if pads and loader is given and loader.nb_consumer > 1:
        loader = in_place_of(loader, **others)
    if not loader.started:
        device = accelerator.device if accelerator.device_placement else None
        loader.start(accelerator.process_index if loader.nb_consumer > 1 else 0, device)
    return AccelerateLoader(loader, accelerator)


class AccelerateLoader(DataLoaderShard):  # type: ignore[misc] # of a library without types
    """A started loader that tells accelerate of the last batch. See `for_accelerate`.

    It has all attributes and methods of the `SwiftLoader`, which is its `loader`. It is a
    `DataLoaderShard`, as what ``accelerator.prepare`` returns is: `skip_first_batches` makes a
    loader that tells accelerate of its end of nothing else. Of that class, it takes no more than
    what enters a loader in accelerate's books.
    """

    use_stateful_dataloader = False
    rng_types = synchronized_generator = None  # the ranks have agreed on the seed
    skip_batches = 0
    _is_accelerate_prepared = True
    _drop_last = True  # `begin` leaves the remainder alone, which it would count by the data set

    def __init__(self, loader: SwiftLoader[Any], accelerator: _Accelerator) -> None:
        self.base_dataloader = loader
        tells_its_end(loader)
        self.gradient_state = GradientState()
        self.device = accelerator.device if accelerator.device_placement else None
        self._nb_processes = accelerator.num_processes
        self._process_index = accelerator.process_index
        self.reset()

    def __getattr__(self, name: str) -> Any:
        """What the loader has. `skip_first_batches` builds a `DataLoader` of what it finds here.

        It gets one over the batches that the loader makes. One over the data set would fork workers
        of torch's, which may hang as the loader has threads; and would not know of `transform`, nor
        of how a stream is split. `save_state` asks for the data set too, which may be built in the
        workers only.
        """
        if name in _OF_BATCHES and _asker().startswith("accelerate."):
            return _Batches(self.loader) if name == "dataset" else _OF_BATCHES[name]
        return super().__getattr__(name)

    @property
    def loader(self) -> SwiftLoader[Any]:
        """What it stands for."""
        return self.base_dataloader

    @property
    def iteration(self) -> int:
        """The epoch that the next iteration gives."""
        return next_epoch(self.loader)

    @property
    def total_batch_size(self) -> int | None:
        """Samples in a batch of all processes together; None where the loader does not say."""
        size = self.loader.batch_size
        return None if size is None else size * self.loader.nb_consumer

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next `iter`. Raises `ConfigError` unless it is 0 to 2^62."""
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        """As of the loader: the next epoch, or the rest of one."""
        return _Told(cast("EpochIterator", iter(self.loader)), self)

    def progress(self, **options: Any) -> Iterator[Any]:
        """The same with a bar. Raises `ConfigError` where tqdm is not installed."""
        return _Told(cast("EpochIterator", self.loader.progress(**options)), self)

    def begin(self) -> None:
        """Tell accelerate that an iteration begins, and how many samples its last step has.

        As of torch's loader, ``remainder`` is -1 where nothing is cut off with `drop_last`, or
        nobody can tell.
        """
        super().begin()
        nb_once = None if self.loader.drop_last else nb_once_in_last_step(self.loader)
        self.remainder = -1 if nb_once is None else nb_once

    def state_dict(self) -> dict[str, Any]:
        """Where the training is in the epoch, as plain data: for `register_for_checkpointing`.

        Collective, as `save_state` is, which keeps what the main process says: of streams and
        samplers each process has a state of its own.
        """
        mine = self.loader.state_dict()
        apart = self._nb_processes > 1 and has_its_own_state(self.loader, mine)
        return {"processes": of_all_ranks(mine) if apart else [mine]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict()` was taken. The next `iter` gives the rest of that epoch.

        Raises `StateError` as the loader does. Also where it has the states of several processes,
        each with all of its own data set, and there is another number of processes now.
        """
        states = state["processes"]
        if len(states) > 1 and self.loader.nb_consumer == 1:
            if len(states) != self._nb_processes:
                raise StateError(
                    f"it is the state of {len(states)} processes, each with its own data, and "
                    f"there are {self._nb_processes} now: resume with as many"
                )
            states = [states[self._process_index]]
        self.loader.load_state_dict(states[0] if len(states) == 1 else states)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled or copied, it is the loader, not started."""
        return self.loader.__reduce__()


class _Batches(IterableDataset[Any]):
    """The batches of the loader's next epoch."""

    def __init__(self, loader: SwiftLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)


class _Told(Iterator[Any]):
    """The batches of one part of an epoch; accelerate is told of the first and of the last.

    No generator: after a bad sample, the loop may go on.
    """

    def __init__(self, batches: EpochIterator, told: AccelerateLoader) -> None:
        self._batches = batches
        self._told = told
        self._begun = False

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        if not self._begun:  # not before: another loader may be iterated in between
            self._begun = True
            self._told.begin()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._told.end()
            raise
        self._told.end_of_dataloader = not self._batches.has_next
        return batch
