"""Lightning's Trainer on 2 processes (or all GPUs), stopped in mid-epoch and resumed.

    python examples/trainer_digits.py
    python examples/trainer_digits.py --short    # fewer epochs, for a quick check

`for_trainer` starts a loader for the Trainer's rank and device. The Trainer's checkpoints hold the
loader's state: the second fit goes on with the very batches that the first had not reached.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from digits import Digits, make_model
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from swift_loader import SwiftLoader
from swift_loader.integrations.lightning import for_trainer

WANTED_ACCURACY = 0.93


class Data(pl.LightningDataModule):
    def train_dataloader(self) -> Any:
        return self._loader(train=True)

    def val_dataloader(self) -> Any:
        return self._loader(train=False)

    def _loader(self, train: bool) -> Any:
        assert self.trainer is not None
        loader = SwiftLoader(
            Digits,
            {"train": train},
            batch_size=32,
            nb_consumer=self.trainer.world_size,
            shuffle=train,
            nearby_shuffle=0,
        )
        return for_trainer(loader, self.trainer)


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = make_model()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        correct = (self.network(images).argmax(dim=1) == labels).float().mean()
        self.log("accuracy", correct, batch_size=len(labels), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def make_trainer(folder: Path, max_steps: int) -> pl.Trainer:
    return pl.Trainer(
        accelerator="auto",
        devices="auto" if torch.cuda.is_available() else 2,
        strategy="ddp",
        max_steps=max_steps,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder, "step", every_n_train_steps=10)],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--short", action="store_true", help="200 steps instead of 400")
    parser.add_argument("--folder", type=Path, help="for the checkpoint; default: a temporary one")
    args = parser.parse_args()
    max_steps = 200 if args.short else 400

    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        first = make_trainer(folder, max_steps=30)
        first.fit(Model(), datamodule=Data())
        folder = Path(first.strategy.broadcast(str(folder)))  # rank 0's, on all ranks
        trainer = make_trainer(folder, max_steps)
        trainer.fit(Model(), datamodule=Data(), ckpt_path=folder / "step.ckpt")
        accuracy = float(trainer.callback_metrics["accuracy"])
        if trainer.is_global_zero:
            print(f"resumed at step 30, ended at step {trainer.global_step}: {accuracy:.1%} right")
        trainer.strategy.barrier()
    if accuracy < WANTED_ACCURACY:
        raise SystemExit(f"test accuracy {accuracy:.1%}, wanted {WANTED_ACCURACY:.0%}")


if __name__ == "__main__":
    main()
