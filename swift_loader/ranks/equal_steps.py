"""Consumers of a stream agree, batch by batch, that all of them have one.

Each says to all others, in one asynchronous call, which batch it is at and whether it has it. One
that has the next batch at hand says so before the training step of this one, so that the answer is
there when the step is done.

A consumer takes part in as many calls as it took batches, and one more, however far it read ahead:
who leaves an epoch early says so in that one more.
"""

from __future__ import annotations

import contextlib
import time

import torch.distributed as dist

from swift_loader.errors import EqualStepsError, refuse
from swift_loader.ranks.agreement import is_collective
from swift_loader.ranks.exchange import Exchange, Row, Word, failures, places, same_place

__all__ = ["EqualSteps", "check_equal_steps", "check_ranks"]

_FAREWELL_S = 5.0  # how long a rank that failed waits for the others to hear of it


def check_equal_steps(nb_samples: int | None) -> None:
    """Raises `ConfigError` for a dataset with a length."""
    if nb_samples is not None:
        refuse("equal_steps", True, "the plan already gives equal steps for a map-style dataset; "
               "it is for streams, leave it out")  # fmt: skip


def check_ranks(nb_consumer: int, meshed: bool) -> None:
    """Raises `ConfigError` unless each rank of `torch.distributed` is a consumer.

    `meshed`: or all ranks of a group are one, as a mesh says.
    """
    if nb_consumer > 1 and not meshed and not is_collective(nb_consumer):
        refuse("equal_steps", True, f"call torch.distributed.init_process_group, with as many "
               f"ranks as consumers ({nb_consumer}), before start()")  # fmt: skip


class EqualSteps:
    """The calls of one loader. Collective to build; `timeout_s` is the time a call may take."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._exchange = Exchange(timeout_s)
        self._rank = dist.get_rank()
        self._epoch, self._step = -1, 0

    @property
    def said(self) -> bool:
        """Whether the others were told of the next batch."""
        return self._exchange.said

    def begin(self, epoch: int) -> None:
        """Leave the epoch before, where the loop did not go to its end, and begin this one."""
        if self._step >= 0 and self._epoch >= 0:
            if not self.said:
                self.say(Word.LEFT)
            self._check(self._heard(), leaving=True)
        self._epoch, self._step = epoch, 0

    def say(self, word: Word, error: BaseException | None = None) -> None:
        """Tell the others; does not wait for them."""
        try:
            self._exchange.say(self._epoch, self._step, word, error)
        except RuntimeError as failure:
            raise self._lost(failure) from failure

    def all_have(self) -> bool:
        """Whether every consumer has the batch. Raises `EqualStepsError` where one failed."""
        rows = self._heard()
        self._check(rows, leaving=False)
        if any(row.word is not Word.HAS_BATCH for row in rows):
            self._step = -1
            return False
        self._step += 1
        return True

    def fail(self, error: BaseException) -> None:
        """Tell the others what went wrong here, and give them a moment to hear it."""
        if self.said or self._step < 0 or not self._exchange.open:
            return
        self._step, step = -1, self._step
        try:
            self._exchange.say(self._epoch, step, Word.FAILED, error)
            self._exchange.heard(_FAREWELL_S)
        except RuntimeError as failure:  # they are gone, or busy: they will find this rank lost
            error.__context__ = failure

    def close(self) -> None:
        """Give the group back; calls that others still wait in fail there."""
        if self._exchange.open and dist.is_initialized():
            if self._step >= 0 and self._epoch >= 0 and not self.said:
                with contextlib.suppress(EqualStepsError):  # the others are gone already
                    self.say(Word.LEFT)
            self._exchange.close()

    def _heard(self) -> list[Row]:
        began_s = time.monotonic()
        try:
            return self._exchange.heard()
        except RuntimeError as failure:
            self._step = -1
            raise self._lost(failure, time.monotonic() - began_s) from failure

    def _check(self, rows: list[Row], *, leaving: bool) -> None:
        failed = failures(rows)
        if failed:
            self._step = -1
            raise EqualStepsError(
                "equal_steps: the loader failed on another rank, so no rank can go on. "
                + "; ".join(failed)
            )
        left = [rank for rank, row in enumerate(rows) if row.word is Word.LEFT]
        if not same_place(rows) or (left and not leaving):
            self._step = -1
            raise EqualStepsError(
                "equal_steps: the ranks are not at the same batch: (epoch, step) by rank is "
                f"{places(rows)}, and {left} left the epoch. All ranks must begin every epoch, and "
                "leave it after the same step"
            )

    def _lost(self, failure: RuntimeError, waited_s: float = 0.0) -> EqualStepsError:
        return EqualStepsError(
            f"equal_steps: rank {self._rank} lost another rank at step {self._step} of epoch "
            f"{self._epoch}, after waiting {waited_s:.1f} s (timeout={self._timeout_s}): it died, "
            "closed its loader, or did not come. See its own error. "
            f"gloo says: {failure}"
        )
