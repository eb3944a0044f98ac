"""Lightning's loggers get the figures of the loader."""

from __future__ import annotations

import csv
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(find_spec("lightning") is None, reason="needs Lightning"),
    pytest.mark.usefixtures("shared_zygote"),
    pytest.mark.filterwarnings("ignore"),  # Lightning's own
]


@pytest.mark.timeout(180)
def test_a_callback_logs_the_figures_at_the_trainers_interval(tmp_path: Path) -> None:
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger

    from swift_loader.integrations.lightning_metrics import LoaderMetrics
    from tests.frameworks.trainer_run import Data, Model

    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=CSVLogger(tmp_path),
        log_every_n_steps=5,
        callbacks=[LoaderMetrics()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )
    trainer.fit(Model(tmp_path / "diary"), datamodule=Data())
    [file] = tmp_path.rglob("metrics.csv")
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    batches = [row["swift_loader_batches_total"] for row in rows]
    assert [float(told) for told in batches if told] == [5, 10, 11]
    assert float(rows[-1]["swift_loader_samples_total"]) == 42
