"""How many batches of a stream are left, by the stream's own length, which is asked for once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swift_loader.loader.options import Config
from swift_loader.loader.orders import size_of_stream
from swift_loader.order.part import EpochPart

__all__ = ["StreamSizes"]


class StreamSizes:
    """Batches of each consumer, as far as somebody has asked."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._by_consumer: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._by_consumer)

    def clear(self) -> None:
        """Ask again: somebody else may split it."""
        self._by_consumer.clear()

    def left(self, part: EpochPart, stream: Callable[[], Any], consumer: int, split: Any) -> int:
        """Batches that are left of a part, if `split` splits the stream.

        Raises `TypeError` if it has no length.
        """
        sizes = self._by_consumer
        if consumer not in sizes:
            sizes[consumer] = size_of_stream(stream(), self._config, consumer, split)
        return max(0, sizes[consumer] - part.first - len(part.done))
