"""The epoch that a sampler is told of: the loader's, as long as the script tells it none itself.

A script that was written for torch's loader calls ``sampler.set_epoch(epoch)`` before each epoch,
and begins with another one than 0 where it goes on with an earlier training.
"""

from __future__ import annotations

from typing import Any

__all__ = ["SamplerEpochs"]


class SamplerEpochs:
    """Of the samplers that have ``set_epoch``; that the script has called it, is seen by `epoch`.

    A sampler may count its epochs by itself, so what it has after it was iterated is no word of
    the script's.
    """

    def __init__(self, samplers: list[Any]) -> None:
        self._told = [one for one in samplers if hasattr(one, "set_epoch")]
        self._by_script = [False] * len(self._told)
        self.look()

    def look(self) -> None:
        """What they have now, the loader knows of."""
        self._seen = [_epoch_of(one) for one in self._told]

    def heed(self) -> None:
        """The script has done what it does before an epoch."""
        for i, one in enumerate(self._told):
            self._by_script[i] |= _epoch_of(one) != self._seen[i]

    def tell(self, epoch: int) -> None:
        """The loader begins this epoch."""
        for one, by_script in zip(self._told, self._by_script, strict=True):
            if not by_script:
                one.set_epoch(epoch)
        self.look()


def _epoch_of(sampler: Any) -> int | None:
    """None: it does not say."""
    epoch = getattr(sampler, "epoch", None)
    return epoch if type(epoch) is int else None
