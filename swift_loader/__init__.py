"""The batches for PyTorch training, made by worker processes.

`SwiftLoader` is the loader. Beside it, the package has classes that describe data sets, and the
errors that a loader raises.
"""

import importlib
from typing import TYPE_CHECKING, Any

from swift_loader.version import __version__ as __version__

if TYPE_CHECKING:
    from swift_loader.batch.fetch import SKIP
    from swift_loader.batch.seeding import RandomGenerators, random_generators
    from swift_loader.cache import Cache
    from swift_loader.containers.array_dataset import ArrayDataset, Windows
    from swift_loader.containers.shared_list import SharedList
    from swift_loader.errors import (
        BatchError,
        ClosedError,
        ConfigError,
        LoaderError,
        NoRoomError,
        PlanMismatchError,
        ShippingError,
        StateError,
        TooManyBadSamplesError,
        WorkerDiedError,
        WorkerError,
        WorkerTimeoutError,
    )
    from swift_loader.loader.loader import SwiftLoader
    from swift_loader.sources.mixture import Mixture, Source
    from swift_loader.sources.packed import Packed
    from swift_loader.sources.shards import Shards

__all__ = [
    "SKIP",
    "ArrayDataset",
    "BatchError",
    "Cache",
    "ClosedError",
    "ConfigError",
    "LoaderError",
    "Mixture",
    "NoRoomError",
    "Packed",
    "PlanMismatchError",
    "RandomGenerators",
    "Shards",
    "SharedList",
    "ShippingError",
    "Source",
    "StateError",
    "SwiftLoader",
    "TooManyBadSamplesError",
    "Windows",
    "WorkerDiedError",
    "WorkerError",
    "WorkerTimeoutError",
    "random_generators",
]

# Found when first asked for (PEP 562): the loader imports torch, which takes seconds, and the
# commands and the endpoint's own process do without it.
_MODULES = {
    "Cache": "swift_loader.cache",
    "Mixture": "swift_loader.sources.mixture",
    "Source": "swift_loader.sources.mixture",
    "Packed": "swift_loader.sources.packed",
    "SKIP": "swift_loader.batch.fetch",
    "RandomGenerators": "swift_loader.batch.seeding",
    "random_generators": "swift_loader.batch.seeding",
    "ArrayDataset": "swift_loader.containers.array_dataset",
    "Shards": "swift_loader.sources.shards",
    "SharedList": "swift_loader.containers.shared_list",
    "SwiftLoader": "swift_loader.loader.loader",
    "Windows": "swift_loader.containers.array_dataset",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES.get(name, "swift_loader.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
