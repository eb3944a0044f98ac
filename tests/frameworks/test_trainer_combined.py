"""Lightning's Trainer with several loaders at once, and with streams, also after a resume.

The Trainer fetches a batch ahead where nobody can tell the length of an epoch.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from swift_loader import SwiftLoader
from tests.datasets import Numbers, Stream
from tests.frameworks.diary import diary, note

pytestmark = [
    pytest.mark.skipif(find_spec("lightning") is None, reason="needs Lightning"),
    pytest.mark.usefixtures("shared_zygote"),
    pytest.mark.filterwarnings("ignore"),  # Lightning's own
]

LONG, SHORT = 26, 11  # samples: 7 and 3 batches of 4


def run(folder: Path, name: str, loaders: dict[str, Any], mode: str, **options: Any) -> list[Any]:
    """Two epochs with these data sets in a `CombinedLoader`; returns what each step got.

    `save`: a checkpoint of each step; `resume`: the step to go on from.
    """
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.utilities import CombinedLoader

    from swift_loader.integrations.lightning import for_trainer
    from tests.frameworks import trainer_run

    class Model(trainer_run.Model):
        def training_step(self, batch: Any, k: int) -> Any:
            got = {which: part and part[1].tolist() for which, part in batch.items()}
            note(self.diary, 0, what="train", indices=got)
            return self.layer(batch["a"][0] / 100).square().mean() if batch["a"] else None

        def transfer_batch_to_device(self, batch: Any, device: Any, index: int) -> Any:
            return batch

        def train_dataloader(self) -> Any:
            made = {}
            for which, dataset in loaders.items():
                shuffle = isinstance(dataset, Numbers)
                loader = SwiftLoader(
                    dataset, batch_size=4, num_workers=0, seed=3, shuffle=shuffle, validate=False
                )
                made[which] = for_trainer(loader, self.trainer)
            return CombinedLoader(made, mode)

    resume, save = options.pop("resume", None), options.pop("save", False)
    each_step = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=1)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=2, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=save,
        callbacks=[each_step] if save else [],
    )  # fmt: skip
    path = None if resume is None else folder / f"step={resume}.ckpt"
    trainer.fit(Model(folder / name), ckpt_path=path)
    return [line["indices"] for line in diary(folder, name)]


@pytest.mark.parametrize(
    ("loaders", "mode"),
    [
        ({"a": Numbers(LONG), "b": Numbers(SHORT)}, "min_size"),
        ({"a": Numbers(LONG), "b": Numbers(SHORT)}, "max_size"),
        ({"a": Numbers(LONG), "b": Numbers(SHORT)}, "max_size_cycle"),
        ({"a": Stream(LONG)}, "max_size_cycle"),
        ({"a": Stream(LONG), "b": Numbers(SHORT)}, "min_size"),
        ({"a": Stream(LONG), "b": Numbers(SHORT)}, "max_size"),
        ({"a": Numbers(LONG), "b": Stream(SHORT)}, "max_size"),
    ],
    ids=["min_size", "max_size", "cycle", "stream", "stream min", "stream max", "short stream"],
)
def test_checkpoint_goes_on_with_the_very_batches_that_were_left(
    tmp_path: Path, loaders: dict[str, Any], mode: str
) -> None:
    whole = run(tmp_path, "whole", loaders, mode, save=True)
    of_epoch = len(whole) // 2
    for step in {1, 2, of_epoch - 2, of_epoch - 1, of_epoch, of_epoch + 1}:
        rest = run(tmp_path, f"from{step}", loaders, mode, resume=step)
        assert rest == whole[step:], step


def test_short_loader_in_a_cycle_gives_another_order_in_each_pass(tmp_path: Path) -> None:
    loaders = {"a": Numbers(LONG), "b": Numbers(SHORT)}
    got = run(tmp_path, "cycle", loaders, "max_size_cycle")
    passes = [  # two whole ones in each epoch, and the beginning of a third
        [index for part in got[begin : begin + 3] for index in part["b"]] for begin in (0, 3, 7, 10)
    ]
    assert all(sorted(one) == list(range(SHORT)) for one in passes)
    assert len({tuple(one) for one in passes}) == 4
    for epoch in (got[:7], got[7:]):
        assert sorted(index for part in epoch for index in part["a"]) == list(range(LONG))
