"""Changes of a graph that a loader makes before its reading service gets it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch.utils.data.graph_settings import apply_shuffle_settings

from swift_loader.dataloader2.graph import DataPipe, list_dps, traverse_dps

__all__ = ["Adapter", "CacheTimeout", "Shuffle"]


class Adapter(ABC):
    """Base of the adapters. Any callable from pipe to pipe serves as well."""

    @abstractmethod
    def __call__(self, datapipe: DataPipe) -> DataPipe:
        """The changed graph; `datapipe` may be changed in place."""


class Shuffle(Adapter):
    """Turns all shuffling in a graph on (`True`) or off (`False`); `None` leaves it as it is.

    `True` on a graph without any shuffling pipe warns, and appends `shuffle()`.
    """

    def __init__(self, enable: bool | None = True) -> None:
        self.enable = enable

    def __call__(self, datapipe: DataPipe) -> DataPipe:
        shuffled: DataPipe = apply_shuffle_settings(datapipe, shuffle=self.enable)
        return shuffled


class CacheTimeout(Adapter):
    """Sets how long, in seconds, caching pipes wait for a file that another process is writing.

    Calls `set_timeout` of every pipe that has it. `ValueError` for `None`.
    """

    def __init__(self, timeout: float | None = None) -> None:
        if timeout is None:
            raise ValueError("`timeout` should be specified for `CacheTimeout`")
        self.timeout = timeout

    def __call__(self, datapipe: DataPipe) -> DataPipe:
        for dp in list_dps(traverse_dps(datapipe)):
            if hasattr(dp, "set_timeout"):
                dp.set_timeout(self.timeout)
        return datapipe
