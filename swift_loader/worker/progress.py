"""Where a worker is, for whoever watches it; seen through memory that both have."""

from __future__ import annotations

__all__ = ["COLLATING", "ENCODING", "FETCHING", "IDLE", "READING_AGAIN", "Progress"]

IDLE, FETCHING, COLLATING, ENCODING, READING_AGAIN = range(5)
_STAGES = ("idle", "fetching", "collating", "encoding", "reading again")


class Progress:
    """Where a worker is, in shared memory, so that it can be seen while it hangs.

    Layout: int64 ticket, int64 sample index (-1: none), int64 stage (see `_STAGES`).
    """

    NBYTES = 24

    def __init__(self, buffer: memoryview) -> None:
        self._cells = buffer[: self.NBYTES].cast("q")
        #: item 0 takes the sample's index: a loop over samples writes it without a call
        self.sample = self._cells[1:2]

    def at_ticket(self, ticket: int) -> None:
        cells = self._cells
        cells[0], cells[1], cells[2] = ticket, -1, FETCHING

    def at_stage(self, stage: int) -> None:
        self._cells[2] = stage

    def read(self) -> tuple[int, int, str]:
        """``(ticket, sample index, stage)`` as of now."""
        ticket, sample, stage = self._cells
        return ticket, sample, _STAGES[stage]
