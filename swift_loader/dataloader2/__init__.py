"""A loader for graphs of torch's data pipes, with the interface of torchdata's `DataLoader2`.

```python
from swift_loader.dataloader2 import DataLoader2, MultiProcessingReadingService
from swift_loader.dataloader2.iter import IterableWrapper

pipe = IterableWrapper(names).open_files(encoding="utf-8").parse_csv()
pipe = pipe.shuffle().sharding_filter().map(fn).batch(8)
with DataLoader2(pipe, reading_service=MultiProcessingReadingService(num_workers=4)) as loader:
    for epoch in range(10):
        loader.seed(epoch)
        for batch in loader:
            ...
```

The graph itself (pipes, traversal, settings) is torch's: `torch.utils.data.datapipes`, `.graph`,
`.graph_settings`.
"""

from __future__ import annotations

import swift_loader.dataloader2.iter
import swift_loader.dataloader2.map  # noqa: F401 registers the functional names
from swift_loader.dataloader2.error import PauseIteration, PeerFailedError, PrefetchTimeoutError
from swift_loader.dataloader2.loader import DataLoader2, DataLoader2Iterator
from swift_loader.dataloader2.reading_service import (
    CheckpointableReadingServiceInterface,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    PrototypeMultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
    WorkerInfo,
)
from swift_loader.dataloader2.registry import functional_datapipe

__all__ = [
    "CheckpointableReadingServiceInterface",
    "DataLoader2",
    "DataLoader2Iterator",
    "DistributedReadingService",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "PauseIteration",
    "PeerFailedError",
    "PrefetchTimeoutError",
    "PrototypeMultiProcessingReadingService",
    "ReadingServiceInterface",
    "SequentialReadingService",
    "WorkerInfo",
    "functional_datapipe",
]
