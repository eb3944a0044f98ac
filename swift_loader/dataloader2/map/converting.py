"""From an iterable pipe to a map-style one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data.datapipes.utils.common import _check_unpickable_fn

from swift_loader.dataloader2.registry import register_on

__all__ = ["IterToMapConverter"]

T_co = TypeVar("T_co", covariant=True)


class IterToMapConverter(MapDataPipe[Any]):
    """A map-style pipe of the keys and values that an iterable pipe yields (`.to_map_datapipe`).

    `key_value_fn(item)` gives `(key, value)`; by default the items are such pairs. The source is
    read to its end at the first `len` or `[key]`; of equal keys the last one counts. `IndexError`
    for a key that is not there. A copy (pickle) reads the source again.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        key_value_fn: Callable[[Any], tuple[Any, Any]] | None = None,
    ) -> None:
        if not isinstance(datapipe, IterDataPipe):
            raise TypeError(f"to_map_datapipe takes an IterDataPipe, got {type(datapipe).__name__}")
        if key_value_fn is not None:
            _check_unpickable_fn(key_value_fn)
        self.datapipe = datapipe
        self.key_value_fn = key_value_fn
        self._read: dict[Any, Any] | None = None

    def _values(self) -> dict[Any, Any]:
        if self._read is None:
            self._read = dict(self._pair(item) for item in self.datapipe)
        return self._read

    def _pair(self, item: Any) -> tuple[Any, Any]:
        pair = item if self.key_value_fn is None else self.key_value_fn(item)
        try:
            key, value = pair
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{type(self).__name__} needs a (key, value) pair of each item: {error}"
            ) from error
        return key, value

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._values()[index]
        except KeyError:
            raise IndexError(
                f"There is no item with key {index!r} in {type(self).__name__}"
            ) from None

    def __len__(self) -> int:
        try:
            return len(self.datapipe)
        except TypeError:
            return len(self._values())

    def __getstate__(self) -> Any:
        state = {**self.__dict__, "_read": None}
        hook = MapDataPipe.getstate_hook
        return state if hook is None else hook(state)


register_on(IterDataPipe, "to_map_datapipe", IterToMapConverter)
