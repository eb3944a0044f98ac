"""Pipes and functions that the tests send into workers."""

from __future__ import annotations

import os
import random
import signal
import time
from asyncio import CancelledError
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch.utils.data import IterDataPipe


class Numbers(IterDataPipe[int]):
    """0 to n - 1, with something that happens on the way."""

    def __init__(self, n: int, at: int = -1, what: str = "", once: Path | None = None) -> None:
        self.n, self.at, self.what, self.once = n, at, what, once

    def __iter__(self) -> Iterator[Any]:
        for i in range(self.n):
            if i == self.at and self._is_first():
                self._happen()
            yield i

    def _is_first(self) -> bool:
        """With `once`: only the first process that comes here, over all processes."""
        if self.once is None:
            return True
        try:
            os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _happen(self) -> None:
        match self.what:
            case "raise":
                raise LookupError("no such item")
            case "exit":
                os._exit(3)
            case "cancel":
                raise CancelledError
            case "sys.exit":
                raise SystemExit(4)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(1000)


class NotHere(IterDataPipe[Any]):
    """Can't be unpickled in another process."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["pid"] != os.getpid():
            raise ImportError("not here")
        self.__dict__.update(state)

    def __iter__(self) -> Iterator[Any]:
        yield 1


class StaysHome(IterDataPipe[Any]):
    """Can't be copied into workers; yields its process with each item."""

    def __init__(self, source: IterDataPipe[Any]) -> None:
        self.source = source

    def is_replicable(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield os.getpid(), item


def with_pid(item: Any) -> tuple[int, Any]:
    return os.getpid(), item


def with_draws(item: Any) -> tuple[Any, ...]:
    return item, random.random(), float(np.random.rand()), float(torch.rand(()))


def with_worker_info(item: Any) -> tuple[Any, int, int]:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    return item, info.id, info.num_workers


def unsendable(item: int) -> Any:
    return (i for i in range(3)) if item == 7 else item


def tensors(item: int) -> dict[str, Any]:
    return {
        "x": torch.full((1000,), float(item)),
        "y": np.full((10,), item),
        "item": item,
        "empty": torch.empty(0),
    }


def big(item: int) -> torch.Tensor:
    return torch.full((3 << 20,), item % 100, dtype=torch.uint8)


def slow(item: int) -> int:
    time.sleep(0.01)
    return item


def odd(item: int) -> bool:
    return item % 2 == 1


def ten_if_first(item: int) -> list[int]:
    return [item] * (10 if item == 0 else 1)


def slow_at_31(item: int) -> tuple[int, int]:
    """With the process that made it; item 31 takes its time."""
    if item == 31:
        time.sleep(4.0)
    return item, os.getpid()
