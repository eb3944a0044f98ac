"""Items of a map-style pipe, made once."""

from __future__ import annotations

from typing import Any, TypeVar

from torch.utils.data import MapDataPipe

from swift_loader.dataloader2.registry import functional_datapipe

__all__ = ["InMemoryCacheHolder"]

T_co = TypeVar("T_co", covariant=True)


@functional_datapipe("in_memory_cache")
class InMemoryCacheHolder(MapDataPipe[T_co]):
    """Keeps every item that was asked for once, without a limit (`.in_memory_cache`).

    A copy (pickle) starts with an empty cache.
    """

    def __init__(self, source_dp: MapDataPipe[T_co]) -> None:
        self.source_dp = source_dp
        self._kept: dict[Any, T_co] = {}

    def __getitem__(self, index: Any) -> T_co:
        if index not in self._kept:
            self._kept[index] = self.source_dp[index]
        return self._kept[index]

    def __len__(self) -> int:
        return len(self.source_dp)

    def __getstate__(self) -> Any:
        state = {**self.__dict__, "_kept": {}}
        hook = MapDataPipe.getstate_hook
        return state if hook is None else hook(state)
