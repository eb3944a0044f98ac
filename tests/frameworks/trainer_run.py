"""Trains with Lightning's `Trainer`, and writes down which samples came when.

python -m tests.frameworks.trainer_run FOLDER     # on 2 ranks, then again from a checkpoint
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

from swift_loader import SwiftLoader
from swift_loader.integrations.lightning import for_trainer
from tests.datasets import Numbers, Stream  # each worker imports what its module imports
from tests.frameworks.diary import NB_TRAIN, NB_VAL, note


class Data(pl.LightningDataModule):
    def __init__(self, train: str = "numbers") -> None:
        super().__init__()
        self.train = train  # what it trains on

    def train_dataloader(self) -> Any:
        assert self.trainer is not None
        if self.train == "numbers":
            return self._loader(NB_TRAIN, shuffle=True)
        if self.train == "stream":
            loader = SwiftLoader(Stream(NB_TRAIN), batch_size=4, validate=False)
        else:
            sampler = DistributedSampler(
                range(NB_TRAIN), self.trainer.world_size, self.trainer.global_rank
            )
            loader = SwiftLoader(Numbers(NB_TRAIN), batch_size=4, sampler=sampler, validate=False)
        return for_trainer(loader, self.trainer)

    def val_dataloader(self) -> Any:
        return self._loader(NB_VAL, shuffle=False)

    def _loader(self, n: int, shuffle: bool) -> Any:
        assert self.trainer is not None
        loader = SwiftLoader(
            Numbers, {"n": n}, 4, nb_consumer=self.trainer.world_size, shuffle=shuffle, seed=3,
            validate=False,
        )  # fmt: skip
        return for_trainer(loader, self.trainer)


class Model(pl.LightningModule):
    def __init__(self, diary: Path) -> None:
        super().__init__()
        self.diary = diary
        self.layer = nn.Linear(4, 1)

    def note(self, what: str, batch: Any, **facts: Any) -> None:
        facts = {"epoch": self.current_epoch, "indices": batch[1].tolist(), **facts}
        note(self.diary, self.global_rank, what=what, **facts)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, index: int) -> Any:
        moved = super().transfer_batch_to_device(batch, device, index)
        for before, after in zip(batch, moved, strict=True):
            assert before.data_ptr() == after.data_ptr(), "the batch was moved a second time"
        return moved

    def training_step(self, batch: tuple[Tensor, Tensor], k: int) -> Tensor:
        of = self.trainer.num_training_batches  # infinite of a stream
        self.note("train", batch, k=k, of=of, last=self.trainer.is_last_batch)
        return self.layer(batch[0] / 100).square().mean()

    def validation_step(self, batch: tuple[Tensor, Tensor], k: int) -> None:
        self.note("sanity" if self.trainer.sanity_checking else "validate", batch, k=k)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def fit(
    folder: Path,
    name: str,
    *,
    devices: int = 1,
    epochs: int = 2,
    limit: int | None = None,
    save: str | None = None,
    resume: Path | None = None,
    train: str = "numbers",
) -> None:
    """Two epochs, written down under `name`; `save`: a checkpoint every "step" or "epoch"."""
    callbacks: list[Any] = []
    if save == "step":
        callbacks = [
            ModelCheckpoint(folder, name + "-{step}", save_top_k=-1, every_n_train_steps=1)
        ]
    elif save == "epoch":
        callbacks = [ModelCheckpoint(folder, name + "-{epoch}", save_top_k=-1)]
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=epochs,
        limit_train_batches=limit,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=save is not None,
        callbacks=callbacks,
    )
    trainer.fit(Model(folder / name), datamodule=Data(train), ckpt_path=resume)


if __name__ == "__main__":
    at = Path(sys.argv[1])
    fit(at, "whole", devices=2, save="step")
    fit(at, "rest", devices=2, resume=at / "whole-step=4.ckpt")
    for kind in ("stream", "sampler"):
        fit(at, kind, devices=2, train=kind, save="step")
        fit(at, f"{kind} rest", devices=2, train=kind, resume=at / f"{kind}-step=4.ckpt")
