"""What ranks say to each other of their next batch, in one collective call.

A call is one asynchronous all-gather of a row of bytes over a gloo group of its own: the epoch, the
step in it, a word, and the text of an error. Calls of the training script on other groups never
meet these.
"""

from __future__ import annotations

from datetime import timedelta
from enum import IntEnum
from typing import NamedTuple

import torch
import torch.distributed as dist

__all__ = ["Exchange", "Row", "Word", "failures", "places", "same_place"]

_HEAD = 4  # int64: epoch, step, word, bytes of the text
_TEXT_BYTES = 480
_A_DAY = timedelta(days=1)


class Word(IntEnum):
    """What a rank says of its next batch."""

    HAS_BATCH = 0
    ENDED = 1
    FAILED = 2
    LEFT = 3  # the training loop went out of the epoch


class Row(NamedTuple):
    """What one rank said. `text` is of the error, where it failed."""

    epoch: int
    step: int
    word: Word
    text: str


class Exchange:
    """One rank's end. Collective to build; a call may take `timeout_s`.

    Calls raise the `RuntimeError` of gloo where another rank is gone or does not come in time.
    """

    def __init__(self, timeout_s: float | None) -> None:
        timeout = _A_DAY if timeout_s is None else timedelta(seconds=timeout_s)
        self._group: dist.ProcessGroup | None = dist.new_group(backend="gloo", timeout=timeout)
        self._work: dist.Work | None = None
        self._table: list[torch.Tensor] = []

    @property
    def said(self) -> bool:
        """Whether this rank has spoken, and has not heard the others."""
        return self._work is not None

    @property
    def open(self) -> bool:
        return self._group is not None

    def say(self, epoch: int, step: int, word: Word, error: BaseException | None = None) -> None:
        """Tell the others; does not wait for them."""
        assert self._group is not None
        text = b"" if error is None else f"{type(error).__name__}: {error}".encode()[:_TEXT_BYTES]
        mine = torch.zeros(8 * _HEAD + _TEXT_BYTES, dtype=torch.uint8)
        mine[: 8 * _HEAD].view(torch.int64)[:] = torch.tensor([epoch, step, word, len(text)])
        if text:
            mine[8 * _HEAD :][: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
        self._table = [torch.empty_like(mine) for _ in range(self._group.size())]
        self._work = dist.all_gather(self._table, mine, group=self._group, async_op=True)

    def heard(self, limit_s: float | None = None) -> list[Row]:
        """What all have said, by rank; waits for them, at most `limit_s` if given."""
        work, self._work = self._work, None
        assert work is not None
        if limit_s is None:
            work.wait()
        else:
            work.wait(timedelta(seconds=limit_s))
        return [_row(said) for said in self._table]

    def close(self) -> None:
        """Give the group back; calls that others still wait in fail there."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = self._work = None


def same_place(rows: list[Row]) -> bool:
    """Whether all are at the same step of the same epoch."""
    return len({(row.epoch, row.step) for row in rows}) == 1


def failures(rows: list[Row]) -> list[str]:
    """What went wrong, of all ranks that say so."""
    return [f"rank {r}: {row.text}" for r, row in enumerate(rows) if row.word is Word.FAILED]


def places(rows: list[Row]) -> dict[int, tuple[int, int]]:
    """``(epoch, step)`` by rank, for an error's text."""
    return {rank: (row.epoch, row.step) for rank, row in enumerate(rows)}


def _row(said: torch.Tensor) -> Row:
    epoch, step, word, size = said[: 8 * _HEAD].view(torch.int64).tolist()
    text = bytes(said[8 * _HEAD :][:size].tolist()).decode(errors="replace")
    return Row(epoch, step, Word(word), text)
