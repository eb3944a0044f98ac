"""Lightning's loggers get the figures of the loader, by a callback.

```python
trainer = Trainer(callbacks=[LoaderMetrics()], logger=...)
```

Each rank has a loader of its own. Lightning's loggers write on rank 0, so they get the figures of
rank 0's loader.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from swift_loader.integrations.lightning import TrainerLoader
from swift_loader.loader.loader import SwiftLoader

__all__ = ["LoaderMetrics"]


class LoaderMetrics(Callback):
    """Logs `SwiftLoader.metrics` every `Trainer.log_every_n_steps` steps, and as an epoch ends.

    `loader`: whose figures. None: those of the Trainer's training loader. The callback logs nothing
    if that is neither a `SwiftLoader` nor what `for_trainer` returned.
    """

    def __init__(self, loader: SwiftLoader | TrainerLoader | None = None) -> None:
        self._loader = loader

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        every = getattr(trainer, "log_every_n_steps", 0)  # the Trainer sets it without declaring it
        if every and (batch_idx + 1) % every == 0:
            self._log(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log(trainer)

    def _log(self, trainer: Trainer) -> None:
        loader = trainer.train_dataloader if self._loader is None else self._loader
        if isinstance(loader, TrainerLoader):
            loader = loader.loader
        if not isinstance(loader, SwiftLoader):
            return
        figures = loader.metrics()
        for logger in trainer.loggers:
            logger.log_metrics(figures, step=trainer.global_step)
