"""A `SwiftLoader` with Lightning Fabric: started for its rank and device.

```python
loader = SwiftLoader(Digits, {"train": True}, 32, nb_consumer=fabric.world_size)
loader = for_fabric(loader, fabric)     # where fabric.setup_dataloaders(...) would stand
```

``fabric.setup_dataloaders`` takes nothing but torch's own `DataLoader`: it deals out that loader's
samples and moves its batches. A `SwiftLoader` does both by itself.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch

from swift_loader.errors import refuse
from swift_loader.loader.loader import SwiftLoader

__all__ = ["for_fabric"]

Batch = TypeVar("Batch")


class _Fabric(Protocol):
    @property
    def world_size(self) -> int: ...
    @property
    def global_rank(self) -> int: ...
    @property
    def device(self) -> torch.device: ...


def for_fabric(loader: SwiftLoader[Batch], fabric: _Fabric) -> SwiftLoader[Batch]:
    """Start `loader` as the consumer of this rank, with batches on its device; returns it.

    Call it after ``fabric.launch()``. A loader that was started before stays as it is.

    Raises `ConfigError` unless the loader has one consumer for each rank, and what `start` raises.
    """
    if loader.nb_consumer != fabric.world_size:
        refuse(
            "nb_consumer",
            loader.nb_consumer,
            f"Fabric has {fabric.world_size} ranks; give nb_consumer=fabric.world_size",
        )
    if not loader.started:
        loader.start(fabric.global_rank, fabric.device)
    return loader
