"""`fullsync`: the ranks of a distributed run agree, item by item, that all of them have one.

Each rank's read-ahead thread takes an item from its shard and then says to all others, in one
collective call (see `swift_loader.ranks.exchange`), which item this is, and that it has it, or
that its shard has ended or raised. Ranks that are not at the same item raise.

All yield the item only if all have it; all end where one has ended; where one raised, all do. So
every rank yields as many items as the shortest shard has, and none waits for a rank that is done.

A rank takes part in as many calls as it consumed items, and one more: a function of the steps it
made, not of how far its thread got. So ranks that stop after the same step stop after the same
call.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, TypeVar

import torch.distributed as dist
from torch.utils.data import IterDataPipe

from swift_loader.dataloader2.ahead import ReadAhead
from swift_loader.dataloader2.error import PeerFailedError, PrefetchTimeoutError
from swift_loader.dataloader2.iter.prefetch import ReadAheadPipe
from swift_loader.dataloader2.registry import functional_datapipe
from swift_loader.ranks.exchange import Exchange, Word, failures, places, same_place

__all__ = ["FullSync"]

T_co = TypeVar("T_co", covariant=True)


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
        self._exchange: Exchange | None = None
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
        if self._exchange is None:
            self._exchange = Exchange(self.timeout)
        self._epoch += 1
        make_source = partial(
            _agreed, self.source_datapipe, self._exchange, self.timeout, self._epoch
        )
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
        if self._exchange is not None:
            self._exchange.close()
        self._exchange = None

    def __getstate__(self) -> Any:
        state = {**self.__dict__, "_ahead": None, "_exchange": None, "_epoch": 0}
        hook = IterDataPipe.getstate_hook
        return state if hook is None else hook(state)


def _agreed(
    source: IterDataPipe[T_co], exchange: Exchange, timeout_s: float, epoch: int
) -> Iterator[T_co]:
    """The items of `source` as long as every rank has one. Runs in the read-ahead thread."""
    items = iter(source)
    number = 0
    while True:
        try:
            item = next(items)
        except StopIteration:
            _all_have(exchange, timeout_s, epoch, number, Word.ENDED)
            return
        except BaseException as error:
            # Not being able to tell the others must not hide what went wrong here.
            with contextlib.suppress(PeerFailedError, PrefetchTimeoutError):
                _all_have(exchange, timeout_s, epoch, number, Word.FAILED, error)
            raise
        if not _all_have(exchange, timeout_s, epoch, number, Word.HAS_BATCH):
            return
        yield item
        del item
        number += 1


def _all_have(
    exchange: Exchange,
    timeout_s: float,
    epoch: int,
    number: int,
    word: Word,
    error: BaseException | None = None,
) -> bool:
    """Tell all ranks of this one's item; do all have one? Raises for what another rank says."""
    began_s = time.monotonic()
    try:
        exchange.say(epoch, number, word, error)
        rows = exchange.heard()
    except RuntimeError as failure:  # gloo's: a call that took too long, or a rank that is gone
        if time.monotonic() - began_s >= 0.9 * timeout_s:
            raise PrefetchTimeoutError(timeout_s, "another rank") from failure
        raise PeerFailedError(
            f"Lost another rank in the middle of the epoch; it may have died. gloo says: {failure}"
        ) from failure
    failed = failures(rows)
    if failed:
        raise PeerFailedError(
            "The data pipe failed on another rank, so no rank can go on. " + "; ".join(failed)
        )
    if not same_place(rows):
        raise PeerFailedError(
            f"The ranks are not at the same item: (epoch, item) by rank is {places(rows)}. All "
            "ranks must begin every epoch, and leave it after the same step."
        )
    return all(row.word is Word.HAS_BATCH for row in rows)
