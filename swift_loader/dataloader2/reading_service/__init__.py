"""How a loader executes its graph of pipes."""

from __future__ import annotations

from swift_loader.dataloader2.reading_service.distributed import DistributedReadingService
from swift_loader.dataloader2.reading_service.in_process import InProcessReadingService
from swift_loader.dataloader2.reading_service.interface import (
    CheckpointableReadingServiceInterface,
    ReadingServiceInterface,
    WorkerInfo,
)
from swift_loader.dataloader2.reading_service.multiprocess import (
    MultiProcessingReadingService,
    PrototypeMultiProcessingReadingService,
)
from swift_loader.dataloader2.reading_service.sequential import SequentialReadingService

__all__ = [
    "CheckpointableReadingServiceInterface",
    "DistributedReadingService",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "PrototypeMultiProcessingReadingService",
    "ReadingServiceInterface",
    "SequentialReadingService",
    "WorkerInfo",
]
