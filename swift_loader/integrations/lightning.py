"""A `SwiftLoader` inside Lightning's `Trainer`: started for its rank, resumed by its checkpoints.

```python
class Data(LightningDataModule):
    def train_dataloader(self):
        loader = SwiftLoader(Digits, {"train": True}, 32)
        return for_trainer(loader, self.trainer)
```

For Fabric, see `swift_loader.integrations.fabric`.

The Trainer deals out the samples of torch's own `DataLoader` only, and does not move batches that
are on the device already. So nothing is done twice. `for_trainer` wraps the loader because the
Trainer expects some things that a plain loader does otherwise:

- After a resume in mid-epoch, ``len`` is still that of the whole epoch, as the Trainer goes on
  counting from where the checkpoint stood.
- The loader's epoch is the Trainer's, also if `limit_train_batches` ends an epoch early. Where a
  `CombinedLoader` goes through a loader several times in an epoch, each pass is an epoch of the
  loader, so that its order and its random draws are new ones.
- The Trainer fetches a batch ahead where nobody can tell it the length of an epoch. Its checkpoints
  say where training is, so they don't count that batch.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch

from swift_loader.errors import StateError
from swift_loader.integrations.consumers import (
    has_its_own_state,
    in_place_of,
    is_told,
    with_consumers,
)
from swift_loader.loader.loader import SwiftLoader
from swift_loader.ranks.agreement import of_all_ranks

__all__ = ["TrainerLoader", "for_trainer"]

_AS_TORCH = frozenset(
    (
        *("dataset", "batch_size", "drop_last", "collate_fn", "in_order", "generator", "timeout"),
        *("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context"),
        *("worker_init_fn", "pin_memory", "pin_memory_device"),
    )
)
_FRAMEWORK = ("lightning.", "pytorch_lightning.", "lightning_fabric.")


class _Trainer(Protocol):
    @property
    def world_size(self) -> int: ...
    @property
    def global_rank(self) -> int: ...
    @property
    def strategy(self) -> Any: ...


def for_trainer(loader: SwiftLoader, trainer: _Trainer) -> TrainerLoader:
    """Start `loader` for the rank and the device of `trainer`; returns what to give the Trainer.

    Call it in the hooks that give the Trainer its loaders (`train_dataloader`, `val_dataloader`,
    ...): by then, the Trainer knows its rank. The loader ends when the Trainer lets go of it, or
    with the process.

    A loader that was started before stays as it is. If it was not told of `nb_consumer` and the
    Trainer has more ranks, a loader with as many consumers takes its place. With ``nb_consumer=1``,
    or ``Trainer(use_distributed_sampler=False)``, each rank gets all of its data set or sampler.
    With ``Trainer(overfit_batches=...)``, one that does not shuffle takes its place.

    Raises `ConfigError` if the loader has another number of consumers, or a sampler that is made
    for one process, and what `start` raises.
    """
    is_open = trainer.world_size > 1 and not loader.started and not is_told(loader)
    if is_open and _deals_nothing_out(trainer):
        loader = in_place_of(loader, nb_consumer=1)
    loader = with_consumers(loader, trainer.world_size, "the Trainer")
    # The Trainer sets it, but does not declare it.
    if getattr(trainer, "overfit_batches", 0):
        # the same samples in each epoch, as the Trainer does with torch's
        loader = in_place_of(loader, shuffle=False, sampler=None)
    if not loader.started:
        rank = trainer.global_rank if loader.nb_consumer > 1 else 0
        loader.start(rank, trainer.strategy.root_device)
    return TrainerLoader(loader, trainer)


def _deals_nothing_out(trainer: _Trainer) -> bool:
    """Whether the script gave ``Trainer(use_distributed_sampler=False)``: each rank has its own
    data, or its own sampler. The Trainer tells it nowhere else.
    """
    connector = getattr(trainer, "_accelerator_connector", None)
    return not getattr(connector, "use_distributed_sampler", True)


class TrainerLoader:
    """A started loader in the form that the Trainer's loops expect.

    They call `state_dict` and `load_state_dict` for their checkpoints, and `set_epoch` of `sampler`
    at the beginning of each epoch.
    """

    batch_sampler = None  # the Trainer looks at it wherever it finds a sampler

    def __init__(self, loader: SwiftLoader, trainer: _Trainer) -> None:
        self.loader = loader
        self._trainer = weakref.ref(trainer)  # which holds this
        self._nb_batches = _length(loader)  # of a whole epoch
        self._epoch = 0  # of the Trainer, in the next pass over the data
        self._more_passes = 0  # than one in an epoch, in all epochs so far
        self._ended = False  # the last pass has come to its end, in the epoch that was set
        self._over_in: int | None = None  # no batch is left of this epoch, after a resume
        self._before: dict[str, Any] | None = None  # the state before the batch fetched ahead

    def __getattr__(self, name: str) -> Any:
        """What torch's `DataLoader` has, as the script asks: ``trainer.train_dataloader.dataset``.

        The Trainer asks for the data set too, to see whether it is a stream, or to build a
        `DataLoader` of it. It finds none: here a data set may be built in the workers only.
        """
        asks = sys._getframe(1).f_globals.get("__name__", "")
        if name not in _AS_TORCH or (name == "dataset" and asks.startswith(_FRAMEWORK)):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.loader, name)

    @property
    def sampler(self) -> TrainerLoader:
        """Where the Trainer finds `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """The next iteration gives this epoch."""
        self._epoch = epoch
        self._ended = False

    def __len__(self) -> int:
        """Batches of a whole epoch. Raises `TypeError` for a stream, which can't tell."""
        if self._nb_batches is None:
            raise TypeError("a loader of a stream has no length")
        return self._nb_batches

    def __iter__(self) -> Iterator[Any]:
        # A generator: the epoch is what the Trainer has set last when it asks for the first batch.
        if self._epoch == self._over_in:
            return
        if self._ended:  # and no epoch was set since: a `CombinedLoader` begins again
            self._more_passes += 1
            self._ended = False
        self.loader.set_epoch(self._epoch + self._more_passes)
        ahead = self._is_fetched_ahead()
        self._before = self._state() if ahead else None
        for batch in self.loader:
            yield batch
            if ahead:
                self._before = self._state()
        self._ended = True

    def state_dict(self) -> dict[str, Any]:
        """The loader's state and the length of an epoch, as plain data that JSON takes.

        Collective, as the Trainer's checkpoints are: they keep what rank 0 says, and of streams and
        samplers each rank has a state of its own.
        """
        mine = self._state_of_training()
        apart = has_its_own_state(self.loader, mine["loader"])
        ranks = of_all_ranks(mine) if apart and _rank()[1] > 1 else [mine]
        return {"nb_batches": self._nb_batches, "ranks": ranks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict()` was taken.

        Raises `StateError` where the loader does. Also if an epoch had another number of batches:
        the Trainer goes on counting, so it would cut epochs short or wait for more batches.
        """
        if state["nb_batches"] != self._nb_batches:
            raise StateError(
                f"an epoch had {state['nb_batches']} batches and has {self._nb_batches} now: the "
                "Trainer's checkpoints count batches, so resume with as many ranks and the same "
                "batch size. With Fabric, or a loop of your own, both may change"
            )
        ranks, (rank, nb_ranks) = state["ranks"], _rank()
        if len(ranks) not in (1, nb_ranks):
            raise StateError(
                f"it is the state of {len(ranks)} ranks, each with its own, and there are "
                f"{nb_ranks} now: resume with as many"
            )
        own = ranks[rank % len(ranks)]
        of_all = len(ranks) > 1 and self.loader.nb_consumer > 1
        self.loader.load_state_dict([one["loader"] for one in ranks] if of_all else own["loader"])
        self._more_passes = own["more_passes"]
        self._epoch = own["loader"]["epoch"] - self._more_passes
        self._ended, self._over_in, self._before = False, None, None
        if own["over"]:  # the loader stands at its next epoch, and the Trainer does not
            self._epoch -= 1
            self._over_in = self._epoch

    def _state_of_training(self) -> dict[str, Any]:
        fetcher = self._fetcher()
        held = not self._ended if fetcher is None else getattr(fetcher, "batches", None)
        if self._before is not None and held:
            return self._before
        # The Trainer's epoch may last longer than this loader, beside others in `CombinedLoader`.
        ended = self._ended and fetcher is not None and not fetcher.done
        return {**self._state(), "over": ended or self._epoch == self._over_in}

    def _state(self) -> dict[str, Any]:
        state = self.loader.state_dict()
        return {"loader": state, "more_passes": self._more_passes, "over": False}

    def _fetcher(self) -> Any:
        """What asks the training loaders for batches; None where there is no training."""
        fit_loop = getattr(self._trainer(), "fit_loop", None)
        return getattr(fit_loop, "_data_fetcher", None)

    def _is_fetched_ahead(self) -> bool:
        """Whether the Trainer, for training, takes each batch before it needs it."""
        fetcher = self._fetcher()
        if fetcher is None or not getattr(fetcher, "prefetch_batches", 0):
            return False
        loaders = fetcher.combined_loader.flattened
        return fetcher.length is None and any(one is self for one in loaders)


def _rank() -> tuple[int, int]:
    """This process's rank, of how many."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _length(loader: SwiftLoader) -> int | None:
    try:
        return len(loader)
    except TypeError:  # a stream
        return None
