"""swift_loader feeds GPUs: batches of a dataset, made by worker processes, ready before they are
needed, every sample exactly once.

>>> from swift_loader import SwiftLoader
"""

from swift_loader.batch.fetch import SKIP
from swift_loader.errors import (
    BatchError,
    ClosedError,
    ConfigError,
    LoaderError,
    PlanMismatchError,
    ShippingError,
    StateError,
    TooManyBadSamplesError,
    WorkerDiedError,
    WorkerError,
    WorkerTimeoutError,
)
from swift_loader.loader import SwiftLoader
from swift_loader.transport.shared_list import SharedList

__all__ = [
    "SKIP",
    "BatchError",
    "ClosedError",
    "ConfigError",
    "LoaderError",
    "PlanMismatchError",
    "SharedList",
    "ShippingError",
    "StateError",
    "SwiftLoader",
    "TooManyBadSamplesError",
    "WorkerDiedError",
    "WorkerError",
    "WorkerTimeoutError",
]
