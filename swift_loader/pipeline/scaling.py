"""How many workers: more while the training loop waits, fewer when that changes nothing. Pure.

The sequence of batches does not depend on the number of workers, so this may be decided by the
clock. (tf.data's autotuning does it with a model of the pipeline, Murray et al. 2021; here two
figures that are measured anyway are enough: how long the loop waited and how busy workers were.)
"""

from __future__ import annotations

__all__ = ["Scaling"]

_INTERVAL_S = 1.0
_WAITS = 0.05  # of the loop's time: worth another worker
_IDLE = 0.01  # the loop waits less than this: a worker may be too many
_FULL = 0.7  # busier than this, the workers that stay could not take over
_CALM_INTERVALS = 5  # without change before a worker is taken away; doubled when that was wrong


class Scaling:
    """Told of every batch; says now and then that one worker more, or fewer, would do."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._began_s: float | None = None
        self._waited_s = 0.0
        self._busy_s = 0.0
        self._calm = 0
        self._patience = _CALM_INTERVALS
        self._removed = False

    def made(self, busy_s: float) -> None:
        """A worker spent so long on a batch."""
        self._busy_s += busy_s

    def delivered(self, waited_s: float, now_s: float, workers: int) -> int:
        """The loop waited so long for a batch. Returns +1, -1 or 0 workers."""
        if self._began_s is None:
            self._began_s = now_s  # the first batch's wait is the workers' start
            self._busy_s = 0.0
            return 0
        self._waited_s += waited_s
        elapsed_s = now_s - self._began_s
        if elapsed_s < _INTERVAL_S:
            return 0
        step = self._step(self._waited_s / elapsed_s, self._busy_s / elapsed_s, workers)
        self._began_s, self._waited_s, self._busy_s = now_s, 0.0, 0.0
        return step

    def _step(self, wait_share: float, busy_workers: float, workers: int) -> int:
        self._calm += 1
        if wait_share > _WAITS and workers < self._most:
            if self._removed:  # it was needed after all
                self._patience *= 2
            self._calm, self._removed = 0, False
            return 1
        enough = wait_share < _IDLE and busy_workers < _FULL * (workers - 1)
        if enough and workers > 1 and self._calm >= self._patience:
            self._calm, self._removed = 0, True
            return -1
        return 0
