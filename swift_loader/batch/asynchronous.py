"""Data sets whose ``__getitem__`` or ``__getitems__`` are coroutines: an event loop in a thread.

Hundreds of requests to an object store can be under way in one worker so. All coroutines of a
worker run in one loop, so a session that one of them opens serves all.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from swift_loader.batch.wrapped import with_wrapped

__all__ = ["Loop", "Upcoming", "UpcomingBatch", "awaiting", "is_asynchronous", "result_of"]

_END_S = 5.0
_AT_ONCE = 512  # samples; as many as a cache reads ahead at most
_FEWEST_BATCHES = 2
_WRAPPERS = (Subset, ConcatDataset)


def is_asynchronous(dataset: Any) -> bool:
    """Whether samples of `dataset` come by coroutines."""
    for name in ("__getitems__", "__getitem__"):
        method = getattr(dataset, name, None)
        if method is not None and callable(method):
            return inspect.iscoroutinefunction(method)
    return False


def awaiting(dataset: Any) -> Any:
    """What stands for `dataset` if a wrapper of torch's would give coroutines in place of samples.

    `dataset` itself for any other. A wrapper that was subclassed to get samples in another way
    counts as any other.
    """
    methods = [kind.__getitem__ for kind in _WRAPPERS]
    if getattr(type(dataset), "__getitem__", None) in methods:
        innermost = [one for one in with_wrapped(dataset) if type(one) not in _WRAPPERS]
        if any(map(is_asynchronous, innermost)):
            return _Awaiting(dataset)
    return dataset


async def result_of(found: Any) -> Any:
    """What a data set gave, or what the coroutine that it gave does."""
    return await found if inspect.isawaitable(found) else found


class _Awaiting:
    """The samples of a wrapper of torch's, by coroutines.

    It has ``__getitems__`` where a data set below the wrapper has samples by no other way.
    """

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        if not isinstance(wrapper, Subset):
            return
        inner = wrapper.dataset
        while type(inner) is Subset:
            inner = inner.dataset
        if inspect.iscoroutinefunction(getattr(inner, "__getitems__", None)):
            self.__getitems__ = self._get_many

    async def __getitem__(self, index: Any) -> Any:
        return await result_of(self._wrapper[index])

    async def _get_many(self, indices: Sequence[Any]) -> Any:
        return await self._wrapper.__getitems__(indices)


class Loop:
    """A running event loop, in a thread that ends with `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="swift_loader-asyncio", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine; its result, or what it raises, comes by the future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancel what runs, and end the thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_END_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


class UpcomingBatch:
    """A batch whose samples are wanted. `futures`: of the samples, once they were begun."""

    __slots__ = ("futures", "indices")

    def __init__(self, indices: list[int]) -> None:
        self.indices = indices
        self.futures: list[Future[Any]] | None = None


class Upcoming:
    """Has the samples of the next batches fetched before their turn: some hundred at a time.

    `begin` begins those of one batch. Batches are taken in the order in which they were wanted. One
    that is passed over was recalled, and is never taken.
    """

    def __init__(self, begin: Callable[[list[int]], list[Future[Any]]]) -> None:
        self._begin = begin
        self._wanted: deque[UpcomingBatch] = deque()

    def want(self, indices: list[int]) -> UpcomingBatch:
        """These samples will be taken after all that were wanted before."""
        batch = UpcomingBatch(indices)
        self._wanted.append(batch)
        self._begin_more()
        return batch

    def take(self, batch: UpcomingBatch) -> list[Future[Any]]:
        """It is the turn of this one."""
        while self._wanted and self._wanted.popleft() is not batch:
            pass
        futures = self._begin(batch.indices) if batch.futures is None else batch.futures
        self._begin_more()
        return futures

    def _begin_more(self) -> None:
        count = 0
        for place, batch in enumerate(self._wanted):
            count += len(batch.indices)
            if place >= _FEWEST_BATCHES and count > _AT_ONCE:
                break
            if batch.futures is None:
                batch.futures = self._begin(batch.indices)
