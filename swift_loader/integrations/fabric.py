"""A `SwiftLoader` with Lightning Fabric: started for its rank and device.

```python
loader = SwiftLoader(Digits, {"train": True}, 32)
loader = for_fabric(loader, fabric)     # where fabric.setup_dataloaders(...) would stand
```

``fabric.setup_dataloaders`` takes nothing but torch's own `DataLoader`: it deals out that loader's
samples and moves its batches. A `SwiftLoader` does both by itself.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch

from swift_loader.integrations.consumers import with_consumers
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

    Call it after ``fabric.launch()``. A loader that was started before stays as it is. If it was
    not told of `nb_consumer` and Fabric has more ranks, a loader with as many consumers takes its
    place. With ``nb_consumer=1``, each rank gets all of its data set.

    Raises `ConfigError` if the loader has another number of consumers, or a sampler that is made
    for one process, and what `start` raises.
    """
    loader = with_consumers(loader, fabric.world_size, "Fabric")
    if not loader.started:
        loader.start(fabric.global_rank if loader.nb_consumer > 1 else 0, fabric.device)
    return loader
