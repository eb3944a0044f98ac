"""`fullsync`: the ranks of a distributed run agree, item by item, that all of them have one.

Each rank's read-ahead thread takes an item from its shard and then says to all others, in one
collective call over a gloo group of its own:

| word | meaning |
|---|---|
| epoch, number | which item this is; ranks that are not at the same one raise |
| status | I have it / my shard has ended / my shard raised |

All yield the item only if all have it; all end where one has ended; where one raised, all get its
message by a second call, and all raise. So every rank yields as many items as the shortest shard
has, and none waits for a rank that is done.

A rank takes part in as many calls as it consumed items, and one more: a function of the steps it
made, not of how far its thread got. So ranks that stop after the same step stop after the same
call.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils.data import IterDataPipe

from swift_loader.dataloader2.ahead import ReadAhead
from swift_loader.dataloader2.error import PeerFailedError, PrefetchTimeoutError
from swift_loader.dataloader2.iter.prefetch import ReadAheadPipe
from swift_loader.dataloader2.registry import functional_datapipe

__all__ = ["FullSync"]

T_co = TypeVar("T_co", covariant=True)


class _Status(IntEnum):
    HAS_ITEM = 0
    ENDED = 1
    FAILED = 2


@functional_datapipe("fullsync")
class FullSync(ReadAheadPipe[T_co]):
    """Yields as many items on every rank as the shortest shard has (`.fullsync`).

    Needs `torch.distributed.init_process_group` before the first iteration (`RuntimeError`), which
    all ranks must begin. Passes everything through where there is one rank. `timeout`: in seconds,
    how long to wait for an item that all ranks have; then `PrefetchTimeoutError`. Where a rank's
    source raises, that rank raises its error and the others `PeerFailedError`. Reads one item
    ahead. Stays in the training process under a reading service with workers.
    """

    def __init__(self, datapipe: IterDataPipe[T_co], timeout: float = 1800) -> None:
        super().__init__(datapipe)
        self.timeout = timeout
        self._group: dist.ProcessGroup | None = None
        self._epoch = 0

    def is_replicable(self) -> bool:
        """No: there is one of it in each rank."""
        return False

    def __iter__(self) -> Iterator[T_co]:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "fullsync needs torch.distributed.init_process_group to be called first"
            )
        if dist.get_world_size() == 1:
            yield from self.source_datapipe
        else:
            yield from self._items()

    def _start(self) -> ReadAhead[T_co]:
        if self._group is None:
            # Of its own: calls of the training script on the default group never meet these.
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout))
        self._epoch += 1
        make_source = partial(_agreed, self.source_datapipe, self._group, self.timeout, self._epoch)
        return ReadAhead(
            make_source,
            capacity=1,
            where="fullsync (this rank's pipe, or another rank's)",
            fill_on_stop=True,
        )

    def _take(self, ahead: ReadAhead[T_co]) -> T_co:
        return ahead.take(self.timeout)

    def shutdown(self) -> None:
        """End the thread and give the process group back."""
        super().shutdown()
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None

    def __getstate__(self) -> Any:
        state = {**self.__dict__, "_ahead": None, "_group": None, "_epoch": 0}
        hook = IterDataPipe.getstate_hook
        return state if hook is None else hook(state)


def _agreed(
    source: IterDataPipe[T_co], group: dist.ProcessGroup, timeout_s: float, epoch: int
) -> Iterator[T_co]:
    """The items of `source` as long as every rank has one. Runs in the read-ahead thread."""
    items = iter(source)
    number = 0
    while True:
        try:
            item = next(items)
        except StopIteration:
            _exchange(group, timeout_s, epoch, number, _Status.ENDED)
            return
        except BaseException as error:
            # Not being able to tell the others must not hide what went wrong here.
            with contextlib.suppress(PeerFailedError, PrefetchTimeoutError):
                _exchange(group, timeout_s, epoch, number, _Status.FAILED, error)
            raise
        if not _exchange(group, timeout_s, epoch, number, _Status.HAS_ITEM):
            return
        yield item
        del item
        number += 1


@contextlib.contextmanager
def _lost_rank_named(timeout_s: float) -> Iterator[None]:
    """Turn gloo's error into ours: a call that took the whole timeout, or a rank that is gone."""
    began = time.monotonic()
    try:
        yield
    except RuntimeError as error:
        if time.monotonic() - began >= 0.9 * timeout_s:
            raise PrefetchTimeoutError(timeout_s, "another rank") from error
        raise PeerFailedError(
            f"Lost another rank in the middle of the epoch; it may have died. gloo says: {error}"
        ) from error


def _exchange(
    group: dist.ProcessGroup,
    timeout_s: float,
    epoch: int,
    number: int,
    status: _Status,
    error: BaseException | None = None,
) -> bool:
    """Tell all ranks this one's status; do all have an item? Raises for what another rank says."""
    mine = torch.tensor([epoch, number, status])
    table = [torch.empty_like(mine) for _ in range(group.size())]
    with _lost_rank_named(timeout_s):
        dist.all_gather(table, mine, group=group)
    rows = [(int(e), int(n), _Status(int(s))) for e, n, s in table]
    failed = [rank for rank, row in enumerate(rows) if row[2] is _Status.FAILED]
    if failed:
        messages: list[str | None] = [None] * len(rows)
        said = None if error is None else f"{type(error).__name__}: {error}"
        with _lost_rank_named(timeout_s):
            dist.all_gather_object(messages, said, group=group)
        raise PeerFailedError(
            "The data pipe failed on another rank, so no rank can go on. "
            + " ".join(f"Rank {rank}: {messages[rank]}" for rank in failed)
        )
    steps = [row[:2] for row in rows]
    if len(set(steps)) > 1:
        raise PeerFailedError(
            "The ranks are not at the same item: (epoch, item) by rank is "
            f"{dict(enumerate(steps))}. All ranks must begin every epoch, and leave it after the "
            "same step."
        )
    return all(row[2] is _Status.HAS_ITEM for row in rows)
