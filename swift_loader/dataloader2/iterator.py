"""One pass over a `DataLoader2`: which of its iterators is valid, limits and pauses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from swift_loader.dataloader2.loader import DataLoader2

__all__ = ["DataLoader2Iterator"]

T_co = TypeVar("T_co", covariant=True)


class DataLoader2Iterator(Iterator[T_co]):
    """One pass over a `DataLoader2`. Unknown attributes are those of the iterator of the graph."""

    def __init__(self, dataloader: DataLoader2[T_co], iterator_id: int) -> None:
        self.dataloader = dataloader
        self.iterator_id = iterator_id
        self.limit_counter: int | None = None
        self.limit_threshold: int | None = None

    def __next__(self) -> T_co:
        """The next item.

        `StopIteration` at the end, and while paused. `RuntimeError` where a newer iterator of the
        same loader was made, or it was shut down. Any error of the graph shuts the loader down and
        is raised.
        """
        if self.iterator_id != self.dataloader.valid_iterator_id:
            raise RuntimeError(
                "This iterator has been invalidated because another iterator has been created from "
                "the same DataLoader2. A DataLoader2 has one iterator at a time."
            )
        item = self.dataloader._next()
        if self.limit_counter is not None:
            self.limit_counter += 1
            self._pause_at_limit()
        return item

    def _pause_at_limit(self) -> None:
        if (
            self.limit_threshold is not None
            and self.limit_counter is not None
            and self.limit_counter >= self.limit_threshold
            and not self.dataloader._is_paused
        ):
            self._pause()

    def _pause(self) -> None:
        """Stop yielding, and hold the threads and workers of the graph still, until `resume`."""
        self.dataloader._pause()
        self.limit_counter = None if self.limit_threshold is None else 0

    def resume(self) -> None:
        """Go on after a pause. The limit stays, and counts from here."""
        self.dataloader._resume()

    def limit(self, num_batches: int | None) -> None:
        """Pause after `num_batches` more items; `None` takes the limit away.

        The limit stays over `resume`.
        """
        self.limit_threshold = num_batches
        self.limit_counter = None if num_batches is None else 0
        self.dataloader._limit(num_batches)
        self._pause_at_limit()

    def __getattr__(self, name: str) -> Any:
        dataloader = self.__dict__.get("dataloader")
        if dataloader is None or dataloader._datapipe_iter is None:
            raise AttributeError(name)
        return getattr(dataloader._datapipe_iter, name)
