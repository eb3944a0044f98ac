"""Consumers of a stream agree, batch by batch, that all of them have one.

Each says to all others, in one asynchronous all-gather over a gloo group of its own, which batch it
is at and whether it has it. One that has the next batch at hand says so before the training step of
this one, so that the answer is there when the step is done.

A consumer takes part in as many calls as it took batches, and one more, however far it read ahead:
who leaves an epoch early says so in that one more.
"""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from enum import IntEnum

import torch
import torch.distributed as dist

from swift_loader.agreement import is_collective
from swift_loader.config import refuse
from swift_loader.errors import EqualStepsError

__all__ = ["EqualSteps", "Word", "check_equal_steps", "check_ranks"]

_HEAD = 4  # int64: epoch, step, word, bytes of the message
_MESSAGE_BYTES = 480
_FAREWELL_S = 5.0  # how long a rank that failed waits for the others to hear of it
_A_DAY = timedelta(days=1)


class Word(IntEnum):
    """What a consumer says of its next batch."""

    HAS_BATCH = 0
    ENDED = 1
    FAILED = 2
    LEFT = 3  # the training loop went out of the epoch


def check_equal_steps(nb_samples: int | None) -> None:
    """Raises `ConfigError` for a dataset with a length."""
    if nb_samples is not None:
        refuse("equal_steps", True, "the plan already gives equal steps for a map-style dataset; "
               "it is for streams, leave it out")  # fmt: skip


def check_ranks(nb_consumer: int) -> None:
    """Raises `ConfigError` unless each rank of `torch.distributed` is a consumer."""
    if nb_consumer > 1 and not is_collective(nb_consumer):
        refuse("equal_steps", True, f"call torch.distributed.init_process_group, with as many "
               f"ranks as consumers ({nb_consumer}), before start()")  # fmt: skip


class EqualSteps:
    """The calls of one loader. Collective to build; `timeout_s` is the time a call may take."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        timeout = _A_DAY if timeout_s is None else timedelta(seconds=timeout_s)
        self._group: dist.ProcessGroup | None = dist.new_group(backend="gloo", timeout=timeout)
        self._rank = dist.get_rank()
        self._epoch, self._step = -1, 0
        self._work: dist.Work | None = None
        self._table: list[torch.Tensor] = []

    @property
    def said(self) -> bool:
        """Whether the others were told of the next batch."""
        return self._work is not None

    def begin(self, epoch: int) -> None:
        """Leave the epoch before, where the loop did not go to its end, and begin this one."""
        if self._step >= 0 and self._epoch >= 0:
            if not self.said:
                self.say(Word.LEFT)
            self._check(self._heard(), leaving=True)
        self._epoch, self._step = epoch, 0

    def say(self, word: Word, error: BaseException | None = None) -> None:
        """Tell the others; does not wait for them."""
        text = "" if error is None else f"{type(error).__name__}: {error}"
        message = text.encode()[:_MESSAGE_BYTES]
        mine = torch.zeros(8 * _HEAD + _MESSAGE_BYTES, dtype=torch.uint8)
        mine[: 8 * _HEAD].view(torch.int64)[:] = torch.tensor(
            [self._epoch, self._step, word, len(message)]
        )
        if message:
            start = 8 * _HEAD
            mine[start : start + len(message)] = torch.tensor(list(message), dtype=torch.uint8)
        assert self._group is not None
        self._table = [torch.empty_like(mine) for _ in range(self._group.size())]
        try:
            self._work = dist.all_gather(self._table, mine, group=self._group, async_op=True)
        except RuntimeError as failure:
            raise self._lost(failure) from failure

    def all_have(self) -> bool:
        """Whether every consumer has the batch. Raises `EqualStepsError` where one failed."""
        rows = self._heard()
        self._check(rows, leaving=False)
        if any(word is not Word.HAS_BATCH for _, _, word, _ in rows):
            self._step = -1
            return False
        self._step += 1
        return True

    def fail(self, error: Exception) -> None:
        """Tell the others what went wrong here, and give them a moment to hear it."""
        if self.said or self._step < 0 or self._group is None:
            return
        try:
            self.say(Word.FAILED, error)
            assert self._work is not None
            self._work.wait(timedelta(seconds=_FAREWELL_S))
        except RuntimeError as failure:  # they are gone, or busy: they will find this rank lost
            error.__context__ = failure
        self._work, self._step = None, -1

    def close(self) -> None:
        """Give the group back; calls that others still wait in fail there."""
        if self._group is not None and dist.is_initialized():
            if self._step >= 0 and self._epoch >= 0 and not self.said:
                with contextlib.suppress(EqualStepsError):  # the others are gone already
                    self.say(Word.LEFT)
            dist.destroy_process_group(self._group)
        self._group = self._work = None

    def _heard(self) -> list[tuple[int, int, Word, str]]:
        assert self._work is not None
        began_s = time.monotonic()
        try:
            self._work.wait()
        except RuntimeError as failure:
            self._work, self._step = None, -1
            raise self._lost(failure, time.monotonic() - began_s) from failure
        self._work = None
        rows = []
        for row in self._table:
            epoch, step, word, size = row[: 8 * _HEAD].view(torch.int64).tolist()
            text = bytes(row[8 * _HEAD : 8 * _HEAD + size].tolist()).decode(errors="replace")
            rows.append((epoch, step, Word(word), text))
        return rows

    def _check(self, rows: list[tuple[int, int, Word, str]], *, leaving: bool) -> None:
        failed = [f"rank {r}: {row[3]}" for r, row in enumerate(rows) if row[2] is Word.FAILED]
        if failed:
            self._step = -1
            raise EqualStepsError(
                "equal_steps: the loader failed on another rank, so no rank can go on. "
                + "; ".join(failed)
            )
        steps = {rank: row[:2] for rank, row in enumerate(rows)}
        left = [rank for rank, row in enumerate(rows) if row[2] is Word.LEFT]
        if len(set(steps.values())) > 1 or (left and not leaving):
            self._step = -1
            raise EqualStepsError(
                f"equal_steps: the ranks are not at the same batch: (epoch, step) by rank is "
                f"{steps}, and {left} left the epoch. All ranks must begin every epoch, and leave "
                "it after the same step"
            )

    def _lost(self, failure: RuntimeError, waited_s: float = 0.0) -> EqualStepsError:
        return EqualStepsError(
            f"equal_steps: rank {self._rank} lost another rank at step {self._step} of epoch "
            f"{self._epoch}, after waiting {waited_s:.1f} s (timeout={self._timeout_s}): it died, "
            "closed its loader, or did not come. See its own error. "
            f"gloo says: {failure}"
        )
