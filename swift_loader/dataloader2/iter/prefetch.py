"""Pipes that run ahead of their consumer, in a thread (see `ahead`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import IterDataPipe
from torch.utils.data._utils.pin_memory import pin_memory as pin_memory_fn

from swift_loader.dataloader2.ahead import ReadAhead
from swift_loader.dataloader2.registry import functional_datapipe

__all__ = ["PinMemory", "Prefetcher", "ReadAheadPipe", "pin_memory_fn"]

T_co = TypeVar("T_co", covariant=True)


class ReadAheadPipe(IterDataPipe[T_co]):
    """Base of the pipes whose source is run by a thread. Subclasses say how, in `_start`.

    The thread lives from the first item of an iteration to its end, or to `reset`, `shutdown`, the
    end of the pipe or of the process. A copy (pickle) starts without thread and buffer.
    """

    def __init__(self, source_datapipe: IterDataPipe[T_co]) -> None:
        self.source_datapipe = source_datapipe
        self._ahead: ReadAhead[T_co] | None = None

    def _start(self) -> ReadAhead[T_co]:
        raise NotImplementedError

    def _take(self, ahead: ReadAhead[T_co]) -> T_co:
        return ahead.take()

    def __iter__(self) -> Iterator[T_co]:
        yield from self._items()

    def _items(self) -> Iterator[T_co]:
        """One iteration. Not in `__iter__`, which torch wraps, so that a subclass can call it."""
        ahead = self._ahead = self._start()
        try:
            while True:
                try:
                    item = self._take(ahead)
                except StopIteration:
                    return
                yield item
                del item  # the consumer's alone from here on: it may hold a shared buffer
        finally:
            ahead.stop()

    def reset(self) -> None:
        """End the thread; the next iteration starts anew."""
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None

    def shutdown(self) -> None:
        """End the thread; an iterator that is still held raises `ClosedError`."""
        self.reset()

    def pause(self) -> None:
        """Return once the source stands still. Items that were read already still come."""
        if self._ahead is not None:
            self._ahead.pause()

    def resume(self) -> None:
        """Let the source run again."""
        if self._ahead is not None:
            self._ahead.resume()

    def __getstate__(self) -> Any:
        state = {**self.__dict__, "_ahead": None}
        hook = IterDataPipe.getstate_hook
        return state if hook is None else hook(state)

    def __len__(self) -> int:
        return len(self.source_datapipe)


@functional_datapipe("prefetch")
class Prefetcher(ReadAheadPipe[T_co]):
    """Has up to `buffer_size` items ready before they are asked for (`.prefetch`).

    The source runs in a thread, which pays where it waits or computes outside the interpreter lock.
    What it raises is raised where its item was to come. `ValueError` unless `buffer_size > 0`.
    """

    def __init__(self, source_datapipe: IterDataPipe[T_co], buffer_size: int = 10) -> None:
        if buffer_size <= 0:
            raise ValueError("'buffer_size' is required to be a positive integer.")
        super().__init__(source_datapipe)
        self.buffer_size = buffer_size

    def _start(self) -> ReadAhead[T_co]:
        return ReadAhead(self.source_datapipe.__iter__, self.buffer_size)


@functional_datapipe("pin_memory")
class PinMemory(ReadAheadPipe[T_co]):
    """Copies the tensors of each item into page-locked memory, two items ahead (`.pin_memory`).

    `pin_memory_fn(item, device)` does it, by default torch's, which goes through lists, tuples,
    dicts and objects with a `pin_memory` method. `device`: the CUDA device whose context to use, by
    default the current one when the iteration starts. Stays in the training process under a reading
    service with workers. `RuntimeError` where CUDA is not available.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[T_co],
        device: str | int | None = None,
        pin_memory_fn: Callable[[Any, Any], Any] = pin_memory_fn,
    ) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("``pin_memory`` can only be used when CUDA is available.")
        super().__init__(source_datapipe)
        self.device = device
        self.pin_memory_fn = pin_memory_fn

    def is_replicable(self) -> bool:
        """No: only the training process may hold a CUDA context."""
        return False

    def _start(self) -> ReadAhead[T_co]:
        device = torch.cuda.current_device() if self.device is None else self.device

        def pinned() -> Iterator[T_co]:
            with torch.cuda.device(device):
                for item in self.source_datapipe:
                    yield self.pin_memory_fn(item, None)

        return ReadAhead(pinned, capacity=2)
