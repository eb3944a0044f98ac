"""Data sets whose ``__getitem__`` or ``__getitems__`` are coroutines: an event loop in a thread.

Hundreds of requests to an object store can be under way in one worker so. All coroutines of a
worker run in one loop, so a session that one of them opens serves all.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

__all__ = ["Loop", "is_asynchronous"]

_END_S = 5.0


def is_asynchronous(dataset: Any) -> bool:
    """Whether samples of `dataset` come by coroutines."""
    for name in ("__getitems__", "__getitem__"):
        method = getattr(dataset, name, None)
        if method is not None and callable(method):
            return inspect.iscoroutinefunction(method)
    return False


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
