"""A `SwiftLoader` inside Lightning's `Trainer`: started for its rank, resumed by its checkpoints.

::

    class Data(LightningDataModule):
        def train_dataloader(self):
            loader = SwiftLoader(Digits, {"train": True}, 32, nb_consumer=self.trainer.world_size)
            return for_trainer(loader, self.trainer)

Fabric needs none of this: ``loader.start(fabric.global_rank, fabric.device)``.

The Trainer deals out, and moves to the device, only what torch's own `DataLoader` gives, so nothing
is done twice. What it wants and a plain loader has not: that ``len`` counts the whole epoch after a
resume in mid-epoch too (it goes on counting from where the checkpoint stood), and that the epoch
follows its own, also where `limit_train_batches` ends one early.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from swift_loader.config import refuse
from swift_loader.errors import StateError
from swift_loader.loader import SwiftLoader

__all__ = ["TrainerLoader", "for_trainer"]


class _Trainer(Protocol):
    @property
    def world_size(self) -> int: ...
    @property
    def global_rank(self) -> int: ...
    @property
    def strategy(self) -> Any: ...


def for_trainer(loader: SwiftLoader, trainer: _Trainer) -> TrainerLoader:
    """Start `loader` for the rank and the device of `trainer`; returns what to give the Trainer.

    Call it where the Trainer asks for a loader (`train_dataloader`, `val_dataloader`, ...): there
    it knows its rank. The loader ends when the Trainer lets go of it, or with the process.

    Raises `ConfigError` when the loader has not one consumer for each rank, and what `start` does.
    """
    if loader.nb_consumer != trainer.world_size:
        refuse(
            "nb_consumer",
            loader.nb_consumer,
            f"the Trainer has {trainer.world_size} ranks; give nb_consumer=trainer.world_size",
        )
    loader.start(trainer.global_rank, trainer.strategy.root_device)
    return TrainerLoader(loader)


class TrainerLoader:
    """A started loader in the form that the Trainer's loops expect.

    They call `state_dict` and `load_state_dict` for their checkpoints, and `set_epoch` of `sampler`
    at the beginning of each epoch.
    """

    batch_sampler = None  # the Trainer looks at it wherever it finds a sampler

    def __init__(self, loader: SwiftLoader) -> None:
        self.loader = loader
        self._epoch = 0  # of the next batch
        self._delivered = 0  # batches of it, as the Trainer counts: over all runs
        self._resumed = (-1, 0)  # an epoch, and its batches before this run
        self._counts_up_to: int | None = None  # batches an epoch that the Trainer was told of

    @property
    def sampler(self) -> TrainerLoader:
        """Where the Trainer finds `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """The next iteration gives this epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Batches of the epoch at hand, with those before a resume."""
        length = self.loader.size_of(self._epoch)[0] + self._before(self._epoch)
        self._counts_up_to = self._counts_up_to or length
        return length

    def __iter__(self) -> Iterator[Any]:
        # A generator: the epoch is what the Trainer has set last when it asks for the first batch.
        epoch = self._epoch
        self.loader.set_epoch(epoch)
        self._delivered = self._before(epoch)
        for batch in self.loader:
            self._delivered += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Of the loader, and how many batches the Trainer has counted in its epoch."""
        return {"loader": self.loader.state_dict(), "batches": self._delivered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict()` was taken.

        Raises `StateError` where the loader does, and when what is left of an epoch are more
        batches than the Trainer counts up to: it takes that number from a whole epoch.
        """
        self.loader.load_state_dict(state["loader"])
        now = self.loader.state_dict()
        self._epoch = now["epoch"]
        begun = now["delivered"] or now["ahead"] or now["plan"]["spans"] is not None
        self._delivered = state["batches"] if begun else 0
        self._resumed = self._epoch, self._delivered
        known, length = self._counts_up_to, len(self)
        if known is not None and length > known:
            raise StateError(
                f"after the {self._delivered} batches that it has counted, the Trainer would leave "
                f"out {length - known} of those that are left of epoch {self._epoch}: an epoch has "
                f"{known} with this number of ranks. Resume on as many ranks as before or fewer, "
                "or from a checkpoint of the end of an epoch"
            )

    def _before(self, epoch: int) -> int:
        resumed, batches = self._resumed
        return batches if epoch == resumed else 0
