"""`map` for functions that wait: in threads, or as coroutines."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.utils.common import _check_unpickable_fn, validate_input_col

from swift_loader.dataloader2.columns import call_on_columns, checked_output_col, with_result
from swift_loader.dataloader2.registry import functional_datapipe

__all__ = ["BatchAsyncMapper", "ThreadPoolMapper"]


@functional_datapipe("threadpool_map")
class ThreadPoolMapper(IterDataPipe[Any]):
    """`map` in a pool of threads, in order (`.threadpool_map`). For functions that wait.

    `scheduled_tasks`: how many items are in work at once, `max_workers` and `threadpool_kwargs` go
    to `concurrent.futures.ThreadPoolExecutor`. `input_col`, `output_col` as of `map`. The first
    error that comes up in order is raised; giving up the iteration cancels what has not begun.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        fn: Callable[..., Any],
        input_col: Any = None,
        output_col: Any = None,
        scheduled_tasks: int = 128,
        max_workers: int | None = None,
        **threadpool_kwargs: Any,
    ) -> None:
        if scheduled_tasks <= 0:
            raise ValueError("'scheduled_tasks' is required to be a positive integer.")
        if max_workers is not None and max_workers <= 0:
            raise ValueError("'max_workers' is required to be a positive integer.")
        _check_unpickable_fn(fn)
        validate_input_col(fn, input_col)
        self.datapipe = source_datapipe
        self.fn = fn
        self.input_col = input_col
        self.output_col = checked_output_col(input_col, output_col)
        self.scheduled_tasks = scheduled_tasks
        self.max_workers = max_workers
        self.threadpool_kwargs = threadpool_kwargs

    def __iter__(self) -> Iterator[Any]:
        pool = ThreadPoolExecutor(max_workers=self.max_workers, **self.threadpool_kwargs)
        try:
            in_work: deque[Future[Any]] = deque()
            for item in self.datapipe:
                in_work.append(pool.submit(self._mapped, item))
                if len(in_work) >= self.scheduled_tasks:
                    yield in_work.popleft().result()
            while in_work:
                yield in_work.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _mapped(self, item: Any) -> Any:
        result = call_on_columns(self.fn, item, self.input_col)
        return with_result(item, result, self.input_col, self.output_col)

    def __len__(self) -> int:
        return len(self.datapipe)


@functional_datapipe("async_map_batches")
class BatchAsyncMapper(IterDataPipe[Any]):
    """`map` by a coroutine function, `batch_size` items at a time (`.async_map_batches`).

    At most `max_concurrency` of a batch wait at once. `input_col`, `output_col` as of `map`.
    `flatten=False` yields lists of `batch_size` instead of items. `ValueError` where `async_fn` is
    no coroutine function.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        async_fn: Callable[..., Awaitable[Any]],
        batch_size: int,
        input_col: Any = None,
        output_col: Any = None,
        max_concurrency: int = 32,
        flatten: bool = True,
    ) -> None:
        if not inspect.iscoroutinefunction(async_fn):
            raise ValueError(f"Expected a coroutine function (async def), but got {async_fn!r}")
        if batch_size <= 0:
            raise ValueError(f"'batch_size' is required to be a positive integer, got {batch_size}")
        self.source_datapipe = source_datapipe
        self.async_fn = async_fn
        self.batch_size = batch_size
        self.input_col = input_col
        self.output_col = checked_output_col(input_col, output_col)
        self.max_concurrency = max_concurrency
        self.flatten = flatten

    def __iter__(self) -> Iterator[Any]:
        for batch in self.source_datapipe.batch(self.batch_size):
            mapped = asyncio.run(self._mapped(list(batch)))
            if self.flatten:
                yield from mapped
            else:
                yield mapped

    async def _mapped(self, batch: list[Any]) -> list[Any]:
        allowed = asyncio.Semaphore(self.max_concurrency)

        async def map_one(item: Any) -> Any:
            async with allowed:
                result = await call_on_columns(self.async_fn, item, self.input_col)
            return with_result(item, result, self.input_col, self.output_col)

        return await asyncio.gather(*map(map_one, batch))

    def __len__(self) -> int:
        nb_item = len(self.source_datapipe)
        return nb_item if self.flatten else -(-nb_item // self.batch_size)
