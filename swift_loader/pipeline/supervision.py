"""What to do about a worker that died, or a batch that does not come. Pure decisions and words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from enum import Enum
from typing import Literal

from swift_loader.errors import TooManyBadSamplesError, WorkerDiedError, WorkerTimeoutError
from swift_loader.order.part import Number
from swift_loader.pipeline.link import Crashed, Gone

__all__ = ["DEATHS_OF_ONE", "Deaths", "Supervisor", "Verdict", "describe_number"]

DEATHS_OF_ONE = 2  # one may be bad luck (the machine's memory), two are the doing of what it made


class Verdict(Enum):
    """What follows from a worker's death."""

    REPLACE = "another worker takes its place and makes again what it held"
    ALONE = "so it does, and makes this piece of work while it holds no other"
    SAME_AGAIN = "the same piece of work has ended too many workers"
    TOO_MANY = "too many workers have died in this epoch"


class Deaths:
    """The rule of deaths: how often a worker is replaced, and how often a piece of work is tried.

    A piece of work that has ended `max_of_one` workers is not tried again, but where the latest was
    killed from outside: then it is tried once more. After the second death it is made alone. The
    bound on restarts is per epoch: a run of weeks may meet a rare crash every day.
    """

    def __init__(self, max_restarts: int, max_of_one: int = DEATHS_OF_ONE) -> None:
        self._max_restarts = max_restarts
        self._max_of_one = max_of_one
        self._restarts = 0
        self._of: Counter[Hashable] = Counter()

    def epoch_begins(self) -> None:
        self._restarts = 0

    def died(self, work: Hashable | None, *, outside: bool = False) -> Verdict:
        """A worker died while it was at `work` (None: at nothing, or nobody knows).

        `outside`: it was killed by another process or by the kernel.
        """
        verdict = Verdict.REPLACE
        if work is not None:
            self._of[work] += 1
            if self._of[work] >= self._max_of_one + outside:
                return Verdict.SAME_AGAIN
            if self._of[work] > 1:
                verdict = Verdict.ALONE
        self._restarts += 1
        return Verdict.TOO_MANY if self._restarts > self._max_restarts else verdict

    def of(self, work: Hashable) -> int:
        """Workers that have died at `work`."""
        return self._of[work]


class Supervisor:
    """Counts deaths and bad samples, and says when it is enough."""

    def __init__(
        self, max_worker_restarts: int, max_deaths_per_batch: int, max_bad_samples: int | None
    ) -> None:
        self._deaths = Deaths(max_worker_restarts, max_deaths_per_batch)
        self._max_restarts = max_worker_restarts
        self._max_bad = max_bad_samples
        self._bad = 0

    def epoch_begins(self) -> None:
        """The bounds on restarts and on bad samples are per epoch."""
        self._deaths.epoch_begins()
        self._bad = 0

    def died(
        self, gone: Gone | Crashed, number: Number | None, contents: str
    ) -> Exception | Literal[Verdict.REPLACE, Verdict.ALONE]:
        """A worker died while it made `number`, a batch of `contents`.

        Returns the error if it is not to be replaced.
        """
        outside = isinstance(gone, Gone) and gone.outside
        verdict = self._deaths.died(number, outside=outside)
        if verdict is Verdict.REPLACE or verdict is Verdict.ALONE:
            return verdict
        at = f"\nIt was making {describe_number(number)} {contents}".rstrip() if number else ""
        if gone.sample is not None:
            at += f"; the last sample that it began is {gone.sample}"
        if verdict is Verdict.SAME_AGAIN:
            return WorkerDiedError(
                f"{gone.story}{at}\nThe same batch has ended {self._deaths.of(number)} workers, so "
                "it is not tried again: look at these samples, or run the dataset over them in a "
                "plain process. Where workers are killed by others, raise max_deaths_per_batch"
            )
        return WorkerDiedError(
            f"{gone.story}{at}\nmax_worker_restarts={self._max_restarts} in one epoch are used up; "
            "raise it if such ends are to be expected"
        )

    def none_left(self, stories: Collection[str]) -> Exception:
        """The last worker is gone and is not to be replaced; `stories` say why, of each."""
        return WorkerDiedError("no worker is left:\n" + "\n".join(stories))

    def bad_samples(self, count: int) -> Exception | None:
        """So many more samples were skipped or replaced. Returns the error if they are too many."""
        self._bad += count
        if self._max_bad is None or self._bad <= self._max_bad:
            return None
        return TooManyBadSamplesError(
            f"{self._bad} samples of this epoch raised and were skipped or replaced; "
            f"max_bad_samples={self._max_bad} allows no more. stats() lists them"
        )

    def timed_out(
        self, timeout_s: float, number: Number | None, workers: Sequence[str]
    ) -> Exception:
        """Nothing came for `timeout_s`; `workers` tell where they are."""
        what = f"{describe_number(number)} has" if number else "no batch has"
        where = "\n\n".join(workers) or "no worker is running"
        return WorkerTimeoutError(
            f"{what} not come within timeout={timeout_s:g} s. Where the workers are:\n\n{where}\n\n"
            "Raise timeout if a batch may take this long; on_timeout='restart' replaces the worker"
        )


def describe_number(number: Number) -> str:
    """``batch 17 of epoch 3``."""
    return f"batch {number.k} of epoch {number.epoch}"
