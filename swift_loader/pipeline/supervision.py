"""What to do about a worker that died, or a batch that does not come. Pure decisions and words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from swift_loader.errors import TooManyBadSamplesError, WorkerDiedError, WorkerTimeoutError
from swift_loader.order.part import Number
from swift_loader.pipeline.link import Crashed, Gone
from swift_loader.worker.faults import describe_indices

__all__ = ["Supervisor", "describe_number"]

_DEATHS_OF_A_BATCH = 2  # one may be bad luck (the machine's memory), two are the batch's doing


class Supervisor:
    """Counts deaths and bad samples, and says when it is enough."""

    def __init__(self, max_worker_restarts: int, max_bad_samples: int | None) -> None:
        self._max_restarts = max_worker_restarts
        self._max_bad = max_bad_samples
        self._restarts = 0
        self._bad = 0
        self._deaths: Counter[Number] = Counter()

    def epoch_begins(self) -> None:
        """The bounds are per epoch: a run of weeks may meet a rare crash every day."""
        self._restarts = 0
        self._bad = 0

    def died(
        self, gone: Gone | Crashed, number: Number | None, indices: Sequence[int]
    ) -> Exception | None:
        """A worker died while it made `number`. Returns the error if it was not to be replaced."""
        at = f"\nIt was making {describe_number(number)}" if number else ""
        if indices:
            at += f" of {describe_indices(indices)}"
        if gone.sample is not None:
            at += f"; the last sample that it began is {gone.sample}"
        if number is not None:
            self._deaths[number] += 1
            if self._deaths[number] >= _DEATHS_OF_A_BATCH:
                return WorkerDiedError(
                    f"{gone.story}{at}\nThe same batch has ended {_DEATHS_OF_A_BATCH} workers, so "
                    "it is not tried again: look at these samples, or run the dataset over "
                    "them in a plain process"
                )
        self._restarts += 1
        if self._restarts > self._max_restarts:
            return WorkerDiedError(
                f"{gone.story}{at}\nmax_worker_restarts={self._max_restarts} in one epoch are used "
                "up; raise it if such ends are to be expected"
            )
        return None

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
