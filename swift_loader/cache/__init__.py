"""Samples kept over epochs, workers, ranks and runs.

`options`
    What a user says: `Cache`.
`naming`, `fingerprint`
    Which store that is: what the processes that share one have in common.
`process`, `books`, `held`
    The store of a host: a process that holds the memory, and its books (pure).
`farthest`, `schedule`, `wanted`, `extents`
    What goes when there is no room, when a sample is wanted again, where samples lie. All pure.
`blocks`, `directory`
    Memory in large pages; where samples lie for good, which workers read without asking.
`files`
    The samples that outlive the run.
`messages`, `starting`, `client`
    How processes talk to the store, how they find or start it, and their end of it.
`samples`, `alike`, `kept`, `ahead`, `hand`
    In a worker: samples as bytes, those that look like the ones before, fetching a batch through
    the store, reading ahead, and what a data set keeps by hand.
`draws`
    Whether a data set draws random numbers, which would freeze.
`command`
    ``swift-loader cache``.
"""

from typing import TYPE_CHECKING, Any

from swift_loader.cache.options import Cache

if TYPE_CHECKING:
    from swift_loader.cache.hand import current

__all__ = ["Cache", "current"]


def __getattr__(name: str) -> Any:
    """`current` needs torch, which the store's process and the commands do without."""
    if name == "current":
        from swift_loader.cache.hand import current

        return current
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
