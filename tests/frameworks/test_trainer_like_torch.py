"""Lightning's Trainer does with a loader what it does with torch's `DataLoader`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from swift_loader import ClosedError, SwiftLoader
from tests.datasets import Numbers
from tests.frameworks.diary import NB_TRAIN, NB_VAL, diary

pytestmark = [
    pytest.mark.skipif(find_spec("lightning") is None, reason="needs Lightning"),
    pytest.mark.usefixtures("shared_zygote"),
    pytest.mark.filterwarnings("ignore"),  # Lightning's own
]


def run(folder: Path, name: str, kind: str, shuffle: bool = False, **options: Any) -> Any:
    """Fits twice over the data with loaders of this kind, and predicts; returns the predictions."""
    import lightning.pytorch as pl

    from swift_loader.integrations.lightning import for_trainer
    from tests.frameworks import trainer_run

    class Model(trainer_run.Model):
        def predict_step(self, batch: Any, k: int) -> list[int]:
            return batch[1].tolist()

    class Data(pl.LightningDataModule):
        def loader(self, n: int, shuffle: bool = False) -> Any:
            if kind == "torch":
                return DataLoader(Numbers(n), batch_size=4, shuffle=shuffle)
            loader = SwiftLoader(
                Numbers, {"n": n}, 4, shuffle=shuffle, seed=3, validate=False, num_workers=0
            )
            return loader if kind == "plain" else for_trainer(loader, self.trainer)

        def train_dataloader(self) -> Any:
            return self.loader(NB_TRAIN, shuffle)

        def val_dataloader(self) -> Any:
            return self.loader(NB_VAL)

        def predict_dataloader(self) -> Any:
            return self.loader(NB_VAL)

    resume = options.pop("resume", None)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=2, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder,
        **{"enable_checkpointing": False, **options},
    )  # fmt: skip
    model = Model(folder / name)
    trainer.fit(model, datamodule=Data(), ckpt_path=resume)
    return trainer.predict(model, datamodule=Data())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"overfit_batches": 2},
        {"limit_train_batches": 3, "limit_val_batches": 2, "limit_predict_batches": 1},
        {"limit_train_batches": 0.5, "num_sanity_val_steps": 0},
        {"val_check_interval": 0.25, "num_sanity_val_steps": -1},
        {"val_check_interval": 4},
        {"val_check_interval": 5, "check_val_every_n_epoch": None},
        {"reload_dataloaders_every_n_epochs": 1},
        {"fast_dev_run": 2},
    ],
    ids=str,
)
def test_trainer_runs_as_with_torchs_loader(tmp_path: Path, options: dict[str, Any]) -> None:
    kinds = ["torch", "adapted"]
    if "overfit_batches" not in options:
        kinds.append("plain")
    predicted = [run(tmp_path, kind, kind, **options) for kind in kinds]
    assert predicted[0]
    for kind, ours in zip(kinds, predicted, strict=True):
        assert ours == predicted[0], kind
        for what in ("sanity", "train", "validate"):
            assert diary(tmp_path, kind, what=what) == diary(tmp_path, "torch", what=what), kind


def test_script_finds_the_attributes_of_a_dataloader_at_the_trainer(tmp_path: Path) -> None:
    import lightning.pytorch as pl

    class Looks(pl.Callback):
        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            loader: Any = trainer.train_dataloader
            names = ("batch_size", "num_workers", "drop_last", "collate_fn", "pin_memory")
            found.append([len(loader.dataset), *(getattr(loader, name) for name in names)])
            assert not hasattr(loader, "start")

    found: list[Any] = []
    for kind in ("torch", "adapted"):
        run(tmp_path, kind, kind, callbacks=[Looks()], limit_train_batches=1)
    assert found[0] == found[1]


def test_overfitting_gives_the_same_samples_in_each_epoch(tmp_path: Path) -> None:
    run(tmp_path, "ours", "adapted", shuffle=True, overfit_batches=2)
    lines = diary(tmp_path, "ours")
    assert [line["indices"] for line in lines] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


def test_shuffled_epochs_differ_with_and_without_the_adapter(tmp_path: Path) -> None:
    for kind in ("adapted", "plain"):
        run(tmp_path, kind, kind, shuffle=True)
        lines = diary(tmp_path, kind)
        first, second = (
            [i for line in lines if line["epoch"] == epoch for i in line["indices"]]
            for epoch in range(2)
        )
        assert sorted(first) == sorted(second) == list(range(NB_TRAIN))
        assert first != second


def test_resume_without_the_adapter_is_refused_with_its_name(tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    each_step = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=5)
    run(tmp_path, "whole", "plain", enable_checkpointing=True, callbacks=[each_step])
    with pytest.raises(ClosedError, match=r"integrations\.lightning\.for_trainer"):
        run(tmp_path, "rest", "plain", resume=tmp_path / "step=5.ckpt")
