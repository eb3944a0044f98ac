"""An epoch that the script has told its own data set, where the workers' are told another one.

With torch's loader, ``dataset.set_epoch(5)`` before an epoch reaches the workers that are started
for it. Here they stay, and are told the loader's epoch.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

__all__ = ["OwnEpoch"]


class OwnEpoch:
    """What the script's data set says of its epoch. Without workers, the loader tells it too."""

    def __init__(self) -> None:
        self._known: set[int] = {0}
        self._warned = False

    def check(self, dataset: Any, epoch: int) -> None:
        """The loader begins `epoch`. Warn, once, if the script has told `dataset` another one."""
        said = _epoch_of(dataset)
        if said is None:
            return
        if said > 0 and said != epoch and said not in self._known and not self._warned:
            self._warned = True
            warnings.warn(
                f"the {type(dataset).__qualname__} of the script was told epoch {said}, and the "
                f"loader's epoch is {epoch}, which is what workers tell theirs: call "
                f"loader.set_epoch({said}) before you iterate the loader",
                RuntimeWarning,
                stacklevel=5,  # of the loop
            )
        self._known = {said, epoch}


def _epoch_of(dataset: Any) -> int | None:
    """None: it is told none, or does not say."""
    epoch = None
    with suppress(Exception):  # a property of the user's
        epoch = dataset.epoch if callable(dataset.set_epoch) else None
    return epoch if type(epoch) is int else None
